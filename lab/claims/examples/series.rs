#![allow(missing_docs, reason = "scratch")]
use telpher_claims::{experiments::series::compare, lab::Lab, published::series};
fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let lab = Lab::default();
    for s in series() {
        if !only.is_empty() && !only.iter().any(|o| s.id.contains(o.as_str())) {
            continue;
        }
        let c = compare(&lab, s).unwrap();
        println!(
            "{:45} {:?} mean {:.1}%  {}",
            s.id,
            s.usage,
            c.mean() * 100.0,
            c.points.iter().map(|p| format!("{:+.0}", p.deviation() * 100.0)).collect::<Vec<_>>().join(" ")
        );
    }
}

#![allow(missing_docs, reason = "scratch")]
use telpher_claims::{lab::Lab, verdict};
fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let lab = Lab::default();
    for c in telpher_claims::published::claims() {
        if !only.is_empty() && !only.contains(&c.id) {
            continue;
        }
        if telpher_claims::experiments::of(&c.id).is_none() {
            continue;
        }
        let t = std::time::Instant::now();
        let r = verdict::of(&lab, c);
        println!(
            "{:6} {:10} {:>7} {:28} | {} [{:.2}s] {}",
            c.id,
            r.verdict.name(),
            r.deviation.map_or(String::new(), |d| format!("{:+.1}%", d * 100.0)),
            r.published(),
            r.simulated,
            t.elapsed().as_secs_f64(),
            r.verdict.why()
        );
    }
}

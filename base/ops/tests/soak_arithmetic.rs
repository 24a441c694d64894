//! Every pair of floating-point formats with every combination of rounding, FTZ, DAZ and negation, compared with the
//! exact oracle: all numbers of 8 and 16 bits, the edges of larger ones, and pairs of edges. The order is random; the
//! time of `TELPHER_SOAK_SECONDS` suffices for all of it in `./soak`, and for a part in `./test`.

#[path = "ops/arithmetic.rs"]
mod arithmetic;
#[path = "ops/exact.rs"]
mod exact;

use arithmetic::{FLOATS, SUMS_AND_ORDERS, check_conversion, check_reduction, edges, few, options, pairs};
use std::time::{Duration, Instant};
use telpher_abi::{DataType, Rounding};
use telpher_ops::Arithmetic;

#[test]
fn every_format_rounding_and_option_is_the_oracles() {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(1);
    let seed = std::process::id().into();
    let mut random = telpher_os::Random::new(seed);
    let mut jobs: Vec<(DataType, DataType, Rounding, usize)> = FLOATS
        .iter()
        .flat_map(|input| FLOATS.map(|output| (*input, output)))
        .flat_map(|(input, output)| Rounding::ALL.iter().map(move |rounding| (input, output, *rounding)))
        .flat_map(|(input, output, rounding)| (0..16).map(move |number| (input, output, rounding, number)))
        .collect();
    for at in (1..jobs.len()).rev() {
        jobs.swap(at, usize::try_from(random.below(at as u64 + 1)).unwrap());
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut done = 0;
    for (input, output, rounding, number) in jobs.iter().take_while(|_| Instant::now() < end) {
        let a = options(Arithmetic::new(*input, *output), *rounding, *number);
        let elements = if input.bytes() <= 2 { (0..1 << (8 * input.bytes())).collect() } else { edges(*input) };
        check_conversion(&a, &elements);
        let pairs = pairs(&few(*input));
        for compute in SUMS_AND_ORDERS {
            check_reduction(&a, compute, &pairs);
        }
        done += 1;
    }
    eprintln!("seed {seed}: {done} of {} combinations", jobs.len());
}

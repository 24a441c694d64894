//! Tests of Type Conversion, Reduce and the scatter-gather lists, at every level this CPU has.
#![forbid(unsafe_code)]

use crate::arithmetic::{
    FLOATS, INTEGERS, SUMS_AND_ORDERS, bytes_of, check_conversion, check_reduction, edges, elements_of, few, options,
    pairs,
};
use crate::exact::{self, LONG};
use telpher_abi::{ComputeType, DataType, Rounding, SglFormat};
use telpher_ops::{Arithmetic, Kernels, sgl};

#[test]
fn conversions_have_the_worked_values() {
    let convert = |from, to, rounding, bits: u64| {
        let a = Arithmetic { rounding, ..Arithmetic::new(from, to) };
        let mut dst = vec![0; to.bytes() as usize];
        let seen = telpher_ops::convert(&a, &bytes_of(from, &[bits]), &mut dst);
        (elements_of(to, &dst)[0], seen.bits())
    };
    for (bits, expected) in [
        (0x3f80_8000, [0x3f80, 0x3f80, 0x3f81, 0x3f80]),
        (0x3f81_8000, [0x3f82, 0x3f81, 0x3f82, 0x3f81]),
        (0xbf80_8000, [0xbf80, 0xbf81, 0xbf80, 0xbf80]),
        (0x4049_0fdb, [0x4049, 0x4049, 0x404a, 0x4049]),
    ] {
        for (rounding, expected) in Rounding::ALL.iter().zip(expected) {
            assert_eq!(
                convert(DataType::Fp32, DataType::Bf16, *rounding, bits),
                (expected, 0),
                "{bits:#x} {rounding:?}"
            );
        }
    }
    let nearest = Rounding::NearestEven;
    for (number, e4m3, e5m2) in [
        (1.0_f32, Some(0x38), 0x3c),
        (-2.5, Some(0xc2), 0xc1),
        (0.1, Some(0x1d), 0x2e),
        (3.3, Some(0x45), 0x43),
        (17.0, Some(0x58), 0x4c),
        (19.0, Some(0x5a), 0x4d),
        (448.0, Some(0x7e), 0x5f),
        (57344.0, None, 0x7b),
        (0.001_953_125, Some(0x01), 0x18),
    ] {
        let bits = number.to_bits().into();
        let (result, seen) = convert(DataType::Fp32, DataType::Fp8E4M3, nearest, bits);
        match e4m3 {
            Some(expected) => assert_eq!((result, seen & exact::OVERFLOW), (expected, 0), "{number}"),
            None => assert_eq!((result, seen), (0x7f, exact::OVERFLOW), "{number}"),
        }
        assert_eq!(convert(DataType::Fp32, DataType::Fp8E5M2, nearest, bits), (e5m2, 0), "{number}");
    }
}

#[test]
fn a_gather_reduction_has_the_worked_values() {
    let blocks = [[1, 2, 3, 4], [100, 200, 300, 65535]];
    for (saturate, last) in [(false, 3), (true, 65535)] {
        let a = Arithmetic { saturate, ..Arithmetic::new(DataType::Int16, DataType::Int16) };
        let mut out = [0; 8];
        let first = telpher_ops::convert(&a, &bytes_of(DataType::Int16, &blocks[0]), &mut out);
        let second = telpher_ops::fold(&a, ComputeType::Add, &bytes_of(DataType::Int16, &blocks[1]), &mut out);
        assert_eq!(elements_of(DataType::Int16, &out), [101, 202, 303, last]);
        assert_eq!((first | second).bits(), exact::OVERFLOW);
    }
}

#[test]
fn lists_have_the_worked_addresses_and_a_buffer_outside_is_found() {
    let list: Vec<u8> = [4_u32, 0, 9].iter().flat_map(|index| index.to_le_bytes()).collect();
    let addresses: Vec<u64> = sgl::addresses(SglFormat::Index32, 0x10_0000, &list, 12).collect();
    assert_eq!(addresses, [0x10_0030, 0x10_0000, 0x10_006c]);
    let offsets: Vec<u64> = sgl::addresses(SglFormat::Index32, 0, &list, 12).collect();

    let mut memory: Vec<u8> = (0..120).collect();
    let mut gathered = [0; 36];
    sgl::gather(&memory, offsets.iter().copied(), 12, &mut gathered).unwrap();
    let expected: Vec<u8> = (48..60).chain(0..12).chain(108..120).collect();
    assert_eq!(gathered, *expected);
    gathered.reverse();
    sgl::scatter(&gathered, &mut memory, offsets.iter().copied(), 12).unwrap();
    assert_eq!(memory[48..60], gathered[..12]);
    assert_eq!(memory[0..12], gathered[12..24]);
    assert_eq!(memory[108..], gathered[24..]);
    sgl::scatter_fill(0x0706_0504_0302_0100, &mut memory, offsets.iter().copied(), 12).unwrap();
    assert_eq!(memory[108..], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]);

    let outside = sgl::gather(&memory, [0, u64::MAX, 0], 12, &mut gathered).unwrap_err();
    assert_eq!((outside.entry, outside.offset), (1, u64::MAX));
    assert_eq!(sgl::scatter(&gathered, &mut memory, [0, 109, 0], 12).unwrap_err().entry, 1);
    // Indexes and offsets wrap modulo 2⁶⁴.
    let wraps = sgl::addresses(SglFormat::Index64, 8, &u64::MAX.to_le_bytes(), 4).collect::<Vec<u64>>();
    assert_eq!(wraps, [4]);
    let wraps = sgl::addresses(SglFormat::Offset64, 8, &u64::MAX.to_le_bytes(), 4).collect::<Vec<u64>>();
    assert_eq!(wraps, [7]);
}

/// Each rounding with some of the options; `tests/soak_arithmetic.rs` has all combinations.
fn combinations() -> impl Iterator<Item = (Rounding, usize)> {
    let combinations = Rounding::ALL.iter().flat_map(|rounding| (0..16).map(move |options| (*rounding, options)));
    combinations.step_by(21)
}

#[test]
fn every_number_of_8_and_16_bits_is_converted_as_by_the_oracle() {
    for input in [DataType::Fp8E5M2, DataType::Fp8E4M3, DataType::Fp16, DataType::Bf16] {
        let elements: Vec<u64> = (0..1 << (8 * input.bytes())).collect();
        // A table is used from this length on.
        let elements = if input.bytes() == 1 { elements.repeat(4) } else { elements };
        for output in &FLOATS[..5] {
            for (rounding, number) in combinations() {
                check_conversion(&options(Arithmetic::new(input, *output), rounding, number), &elements);
            }
        }
    }
}

#[test]
fn numbers_of_32_and_64_bits_are_converted_as_by_the_oracle() {
    let mut random = telpher_os::Random::new(30);
    for (input, outputs) in [(DataType::Fp32, &FLOATS[..]), (DataType::Fp64, &FLOATS[..])] {
        let mut elements = edges(input);
        elements.extend((0..2000).map(|_| random.next() >> (64 - 8 * input.bytes())));
        for output in outputs {
            for (rounding, number) in combinations() {
                check_conversion(&options(Arithmetic::new(input, *output), rounding, number), &elements);
            }
        }
    }
}

#[test]
fn floating_point_reductions_are_those_of_the_oracle() {
    for input in FLOATS {
        let pairs = pairs(&few(input));
        for (output, compute) in FLOATS.iter().flat_map(|output| SUMS_AND_ORDERS.map(|compute| (*output, compute))) {
            // The long numbers of the oracle take twenty times as long.
            let long = input == DataType::Fp64 || output == DataType::Fp64;
            let some: Vec<(u64, u64)> = pairs.iter().copied().step_by(if long { 61 } else { 5 }).collect();
            for (rounding, number) in combinations() {
                check_reduction(&options(Arithmetic::new(input, output), rounding, number), compute, &some);
            }
        }
    }
}

#[test]
fn all_pairs_of_8_bit_numbers_are_reduced_as_by_the_oracle() {
    let pairs = pairs(&(0..0x100).collect::<Vec<u64>>());
    for data_type in [DataType::Fp8E5M2, DataType::Fp8E4M3] {
        for compute in SUMS_AND_ORDERS {
            for (rounding, number) in combinations() {
                check_reduction(&options(Arithmetic::new(data_type, data_type), rounding, number), compute, &pairs);
            }
        }
    }
}

#[test]
fn ordinary_random_numbers_are_reduced_as_by_the_oracle() {
    let mut random = telpher_os::Random::new(31);
    for (input, output) in [
        (DataType::Fp32, DataType::Fp32),
        (DataType::Bf16, DataType::Bf16),
        (DataType::Fp16, DataType::Fp16),
        (DataType::Bf16, DataType::Fp32),
        (DataType::Fp8E4M3, DataType::Fp32),
    ] {
        // Exponents near each other, so that sums round, cancel and carry.
        let (exponent, mantissa_bits) = match input {
            DataType::Fp32 => (120, 23),
            DataType::Bf16 => (120, 7),
            DataType::Fp16 => (12, 10),
            _ => (5, 3),
        };
        let mut one = || {
            let bits = random.next();
            let magnitude = (exponent + bits % 6) << mantissa_bits | bits >> 8 & ((1 << mantissa_bits) - 1);
            magnitude | (bits >> 63) << (8 * input.bytes() - 1)
        };
        let pairs: Vec<(u64, u64)> = (0..8192).map(|_| (one(), one())).collect();
        for compute in SUMS_AND_ORDERS {
            for rounding in Rounding::ALL {
                check_reduction(&options(Arithmetic::new(input, output), *rounding, 0), compute, &pairs);
            }
        }
    }
}

#[test]
fn sums_of_16_bit_numbers_in_32_bits_round_and_overflow_as_by_the_oracle() {
    let mut random = telpher_os::Random::new(33);
    for input in [DataType::Bf16, DataType::Fp16, DataType::Fp32] {
        let a = Arithmetic::new(input, DataType::Fp32);
        // Whole vectors of ordinary numbers, and of numbers at both ends of the range.
        let (few_earlier, few_new) = (few(DataType::Fp32), few(input));
        let ordinary = |random: &mut telpher_os::Random, data_type| match data_type {
            DataType::Bf16 => 0x3f00 + random.below(0x100),
            DataType::Fp16 => 0x3800 + random.below(0x1000),
            _ => 0x3f00_0000 + random.below(0x0180_0000),
        };
        for ends in [0, 1, 64] {
            for (rounding, number) in Rounding::ALL.iter().flat_map(|rounding| [(*rounding, 0), (*rounding, 4)]) {
                let a = options(a, rounding, number);
                let pairs: Vec<(u64, u64)> = (0..1024)
                    .map(|_| {
                        if random.below(64) < ends {
                            let (x, y) = (random.below(few_earlier.len() as u64), random.below(few_new.len() as u64));
                            (few_earlier[usize::try_from(x).unwrap()], few_new[usize::try_from(y).unwrap()])
                        } else {
                            (ordinary(&mut random, DataType::Fp32), ordinary(&mut random, input))
                        }
                    })
                    .collect();
                let expected: Vec<(u64, u8)> =
                    pairs.iter().map(|(x, y)| exact::fold::<LONG>(&a, ComputeType::Add, *x, *y)).collect();
                let (earlier, new): (Vec<u64>, Vec<u64>) = pairs.iter().copied().unzip();
                for kernels in Kernels::available() {
                    let mut dst = bytes_of(DataType::Fp32, &earlier);
                    let seen = kernels.fold(&a, ComputeType::Add, &bytes_of(input, &new), &mut dst);
                    for (at, result) in elements_of(DataType::Fp32, &dst).into_iter().enumerate() {
                        assert_eq!(result, expected[at].0, "{:#x?} {a:?} {kernels:?}", pairs[at]);
                    }
                    assert_eq!(seen.bits(), expected.iter().fold(0, |seen, (_, one)| seen | one), "{a:?} {kernels:?}");
                }
                let pairs: Vec<(u64, u64)> = new.iter().copied().zip(new.iter().rev().copied()).collect();
                check_reduction(&a, ComputeType::Add, &pairs);
            }
        }
    }
}

#[test]
fn a_sum_of_the_largest_numbers_is_rounded_in_its_direction_and_noticed() {
    for (data_type, largest) in [
        (DataType::Fp32, 0x7f7f_ffff),
        (DataType::Bf16, 0x7f7f),
        (DataType::Fp16, 0x7bff),
        (DataType::Fp64, 0x7fef << 48),
    ] {
        let sign = 1 << (8 * data_type.bytes() - 1);
        for rounding in Rounding::ALL {
            for pair in [(largest, largest), (largest | sign, largest | sign), (largest, 0), (largest, largest | sign)]
            {
                let a = options(Arithmetic::new(data_type, data_type), *rounding, 0);
                check_reduction(&a, ComputeType::Add, &vec![pair; 600]);
            }
        }
    }
}

#[test]
fn a_reduction_with_two_destinations_writes_both() {
    let mut random = telpher_os::Random::new(34);
    for (input, output) in
        [(DataType::Fp32, DataType::Fp32), (DataType::Bf16, DataType::Fp32), (DataType::Int64, DataType::Int8)]
    {
        let a = Arithmetic::new(input, output);
        for elements in [0, 1, 255, 8192, 20_001] {
            let bytes = elements * input.bytes() as usize;
            let [mut left, mut right] = [vec![0; bytes], vec![0; bytes]];
            random.fill(&mut left);
            random.fill(&mut right);
            for kernels in Kernels::available() {
                let mut once = vec![0; elements * output.bytes() as usize];
                let seen = kernels.reduce(&a, ComputeType::Add, &left, &right, &mut once);
                let [mut first, mut second] = [vec![1; once.len()], vec![2; once.len()]];
                let both = kernels.reduce_dualcast(&a, ComputeType::Add, [&left, &right], [&mut first, &mut second]);
                assert_eq!(both, seen, "{a:?} {elements} {kernels:?}");
                assert!(first == once && second == once, "{a:?} {elements} {kernels:?}");
            }
        }
    }
}

#[test]
fn a_reduction_of_blocks_is_a_conversion_and_folds() {
    let mut random = telpher_os::Random::new(35);
    for (input, output) in [
        (DataType::Fp32, DataType::Fp32),
        (DataType::Bf16, DataType::Fp32),
        (DataType::Int16, DataType::Int16),
        (DataType::Fp64, DataType::Fp32),
    ] {
        let a = Arithmetic::new(input, output);
        for (elements, count) in [(1, 3), (300, 4), (256, 1), (5000, 3), (10, 0)] {
            let mut data = vec![0; elements * count * input.bytes() as usize];
            random.fill(&mut data);
            let blocks = data.chunks_exact(elements * input.bytes() as usize);
            for kernels in Kernels::available() {
                let [mut expected, mut result] = [(); 2].map(|()| vec![9; elements * output.bytes() as usize]);
                let mut seen = telpher_abi::ComputeResult::empty();
                for (at, block) in blocks.clone().enumerate() {
                    seen |= match at {
                        0 => kernels.convert(&a, block, &mut expected),
                        _ => kernels.fold(&a, ComputeType::Add, block, &mut expected),
                    };
                }
                assert_eq!(kernels.reduce_blocks(&a, ComputeType::Add, blocks.clone(), &mut result), seen);
                assert!(result == expected, "{a:?} {elements} {count} {kernels:?}");
            }
        }
    }
}

#[test]
fn lists_of_every_length_of_buffers_gather_what_they_scatter() {
    let memory: Vec<u8> = (0..4096_u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for block in [1, 7, 8, 63, 64, 65, 128, 200, 256, 300] {
        let offsets = [3 * block as u64, 0, 4096 - block as u64, 5];
        let expected: Vec<u8> =
            offsets.iter().flat_map(|at| memory[usize::try_from(*at).unwrap()..][..block].to_vec()).collect();
        let mut gathered = vec![0; 4 * block];
        sgl::gather(&memory, offsets, block, &mut gathered).unwrap();
        assert!(gathered == expected, "{block}");
        let mut scattered = vec![0; 4096];
        sgl::scatter(&gathered, &mut scattered, offsets, block).unwrap();
        for offset in offsets {
            let place = usize::try_from(offset).unwrap()..usize::try_from(offset).unwrap() + block;
            assert!(scattered[place.clone()] == memory[place], "{block} at {offset}");
        }
        let outside = [0, 4097 - block as u64, 0, 0];
        assert_eq!(sgl::gather(&memory, outside, block, &mut gathered).unwrap_err().entry, 1, "{block}");
        assert_eq!(sgl::scatter(&gathered, &mut scattered, outside, block).unwrap_err().entry, 1, "{block}");
    }
}

#[test]
fn buffers_of_every_length_are_copied_and_filled() {
    let bytes: Vec<u8> = (0..400_u32).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect();
    for len in 0..300 {
        let mut dst = vec![0; len + 2];
        sgl::copy_buffer(&bytes[..len], &mut dst[1..=len]);
        assert!(dst[1..=len] == bytes[..len] && (dst[0], dst[len + 1]) == (0, 0), "{len}");
        sgl::fill_buffer(&mut dst[1..=len], 0x0807_0605_0403_0201);
        assert!(dst[1..=len].iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 8 + 1), "{len}");
        assert_eq!((dst[0], dst[len + 1]), (0, 0), "{len}");
    }
}

#[test]
fn a_fold_is_the_reduction_of_the_result_so_far() {
    let mut random = telpher_os::Random::new(32);
    for (input, output) in FLOATS.iter().flat_map(|input| FLOATS.map(|output| (*input, output))) {
        let (few_earlier, few_new) = (few(output), few(input));
        let pick = |random: &mut telpher_os::Random, from: &[u64]| {
            from[usize::try_from(random.below(from.len() as u64)).unwrap()]
        };
        let pairs: Vec<(u64, u64)> =
            (0..500).map(|_| (pick(&mut random, &few_earlier), pick(&mut random, &few_new))).collect();
        for ((rounding, number), compute) in combinations().flat_map(|one| SUMS_AND_ORDERS.map(|c| (one, c))) {
            let a = options(Arithmetic::new(input, output), rounding, number);
            let expected: Vec<(u64, u8)> =
                pairs.iter().map(|(earlier, new)| exact::fold::<LONG>(&a, compute, *earlier, *new)).collect();
            let (earlier, new): (Vec<u64>, Vec<u64>) = pairs.iter().copied().unzip();
            for kernels in Kernels::available() {
                let mut dst = bytes_of(output, &earlier);
                let seen = kernels.fold(&a, compute, &bytes_of(input, &new), &mut dst);
                let results = elements_of(output, &dst);
                for (at, result) in results.into_iter().enumerate() {
                    assert_eq!(result, expected[at].0, "{:#x?} {compute:?} {a:?} {kernels:?}", pairs[at]);
                }
                assert_eq!(seen.bits(), expected.iter().fold(0, |seen, (_, one)| seen | one), "{compute:?} {a:?}");
            }
        }
    }
}

/// Integers at both ends of every type's range, and a few between.
fn few_integers(data_type: DataType) -> Vec<u64> {
    let mask = u64::MAX >> (64 - 8 * data_type.bytes());
    let mut elements = vec![0, 1, 2, 100, 0x5a5a_5a5a_5a5a_5a5a & mask];
    for bits in [7, 8, 15, 16, 31, 32, 63].into_iter().filter(|bits| *bits < 8 * data_type.bytes()) {
        let edge = 1_u64 << bits;
        elements.extend([edge - 1, edge, edge + 1, edge.wrapping_neg() & mask, (edge + 1).wrapping_neg() & mask]);
    }
    elements.extend([mask, mask - 1]);
    elements
}

#[test]
fn integers_are_converted_and_reduced_as_by_the_oracle() {
    for input in INTEGERS {
        let small = if input.bytes() <= 2 {
            (0..1 << (8 * input.bytes())).step_by(if input.bytes() == 2 { 5 } else { 1 }).collect()
        } else {
            few_integers(input)
        };
        let (all, few) = (pairs(&(0..256).collect::<Vec<u64>>()), pairs(&few_integers(input)));
        for (output, bits) in INTEGERS.iter().flat_map(|output| (0..16).map(move |bits| (*output, bits))) {
            let a = Arithmetic {
                signed: bits & 1 != 0,
                saturate: bits & 2 != 0,
                negate1: bits & 4 != 0,
                negate2: bits & 8 != 0,
                ..Arithmetic::new(input, output)
            };
            if !a.negate2 {
                check_conversion(&a, &small);
            }
            let pairs = if (input, output, bits & 12) == (DataType::Int8, DataType::Int8, 0) { &all } else { &few };
            for compute in ComputeType::ALL {
                check_reduction(&a, *compute, pairs);
            }
        }
    }
}

#[test]
fn every_length_and_place_of_a_special_number_gives_the_same_elements() {
    let a = Arithmetic::new(DataType::Fp32, DataType::Bf16);
    let specials = [0x7fc0_0000, 0x7f80_0000, 1, 0x7f7f_ffff, 0];
    for len in (0..200).chain([255, 256, 257]) {
        let elements: Vec<u64> = (0..len)
            .map(|at| if at % 67 == len % 67 { specials[at / 67 % 5] } else { 0x3f80_0000 + at as u64 * 0x1_2345 })
            .collect();
        check_conversion(&a, &elements);
        let pairs: Vec<(u64, u64)> = elements.iter().copied().zip(elements.iter().rev().copied()).collect();
        check_reduction(&Arithmetic::new(DataType::Fp32, DataType::Fp32), ComputeType::Add, &pairs);
    }
}

#[test]
fn one_special_number_among_ordinary_ones_changes_no_other_result() {
    for input in &FLOATS[..5] {
        let one = match input {
            DataType::Fp8E5M2 => 0x3c,
            DataType::Fp8E4M3 => 0x38,
            DataType::Fp16 => 0x3c00,
            DataType::Bf16 => 0x3f80,
            _ => 0x3f80_0000,
        };
        let sign = 1 << (8 * input.bytes() - 1);
        // A whole block of a vector loop, and a rest.
        let ordinary: Vec<u64> = (0..300).map(|at| one + at % 3 + if at % 5 == 0 { sign } else { 0 }).collect();
        for (round, special) in few(*input).into_iter().enumerate() {
            let mut elements = ordinary.clone();
            elements[7 * round % 256] = special;
            elements[(7 * round + 100) % 256] = 0;
            let a = Arithmetic::new(*input, *input);
            let (rounding, number) = (Rounding::ALL[round % 4], if round % 8 < 4 { 0 } else { 1 });
            for output in &FLOATS[..5] {
                check_conversion(&options(Arithmetic { output: *output, ..a }, rounding, number), &elements);
            }
            let pairs: Vec<(u64, u64)> = elements.iter().copied().zip(ordinary.iter().rev().copied()).collect();
            for compute in SUMS_AND_ORDERS {
                check_reduction(&options(a, Rounding::NearestEven, number), compute, &pairs);
            }
        }
    }
}

#[test]
#[should_panic(expected = "integers are converted to integers")]
fn a_conversion_between_classes_panics() {
    telpher_ops::convert(&Arithmetic::new(DataType::Int8, DataType::Fp8E5M2), &[0], &mut [0]);
}

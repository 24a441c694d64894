//! Bytes of a process that are read with a proof that they are its bytes.
#![allow(unsafe_code, reason = "takes the address space of this process, of which the test names its own buffers")]

use std::io::ErrorKind;
use telpher_mem::Local;

/// A word that says whose memory it is.
static WORD: u64 = 0x0123_4567_89ab_cdef;

fn address<T>(of: *const T) -> u64 {
    of.expose_provenance() as u64
}

#[test]
fn bytes_come_with_a_proof_or_are_refused() {
    // SAFETY: all ranges below are buffers of this function, which nothing else uses meanwhile.
    let local = unsafe { Local::new() };
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    let mut into = vec![0_u8; 100_000];
    let start = address(into.as_mut_ptr());
    let parts = [(start, 5), (start + 5, 70_000), (start + 70_005, 29_995)];
    let (here, from) = (std::process::id(), address(bytes.as_ptr()));
    let proof = (address(&raw const WORD), WORD);
    local.read_process(here, from, &parts, proof).unwrap();
    assert!(into == bytes);
    let wrong = local.read_process(here, from, &parts, (proof.0, WORD ^ 1)).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidData);
    // Nothing is mapped at page 1.
    for (from, into, proof) in
        [(4096, parts[0], proof), (from, (4096, 5), proof), (from, parts[0], (4096, WORD)), (u64::MAX, parts[0], proof)]
    {
        local.read_process(here, from, &[into], proof).unwrap_err();
    }
    for process in [u32::MAX, i32::MAX.unsigned_abs()] {
        local.read_process(process, from, &parts, proof).unwrap_err();
    }
    assert_eq!(local.read_process(here, from, &[parts[0]; 9], proof).unwrap_err().kind(), ErrorKind::InvalidInput);
}

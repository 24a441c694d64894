//! Grants of memory between processes. The owner, or the other side, is this test binary again, run for one test.
#![allow(clippy::cast_possible_truncation, reason = "offsets within a few pages")]
#![allow(unsafe_code, reason = "grants memory that the tests keep until it is revoked, and forks")]

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use telpher_mem::{Access, GrantError, GrantedMemory, MemoryGrant, Remote, Space, StableBuf, StableBufMut, WriteHint};

/// Set in the environment of an owner: what it does when it is told to end.
const OWNER: &str = "TELPHER_MEM_TEST_OWNER";

/// A generous limit.
const LONG: Duration = Duration::from_secs(60);

/// Bytes that an owner grants, between bytes that it does not grant.
const LEN: u64 = 3 * 4096 + 100;
const BEFORE: u64 = 4096 + 8;

/// A process that grants memory.
struct Owner {
    child: Child,
    control: UnixStream,
    file: OwnedFd,
}

impl Owner {
    fn new(access: Access, then: &str) -> Owner {
        let (mut control, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_owner_grants", "--nocapture"])
            .env(OWNER, format!("{then}{}", if access.writes() { ",write" } else { "" }))
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut number = [0; 4];
        control.read_exact(&mut number).unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let file = pidfd_getfd(process, i32::from_le_bytes(number), PidfdGetfdFlags::empty()).unwrap();
        Owner { child, control, file }
    }

    /// Tells the owner to do what it was made for, and returns its answer.
    fn act(&mut self) -> u8 {
        self.control.write_all(&[0]).unwrap();
        let mut answer = [0];
        self.control.read_exact(&mut answer).unwrap();
        answer[0]
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Byte `at` of the owner's memory.
fn byte(at: u64) -> u8 {
    (at * 7 % 251) as u8
}

/// Not a test: the code of an owner. It answers a command with one byte.
#[test]
fn the_owner_grants() {
    let Ok(what) = std::env::var(OWNER) else { return };
    let mut control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let access = if what.ends_with(",write") { Access::ReadWrite } else { Access::Read };
    let mut memory: Vec<u8> = (0..BEFORE + LEN + 4096).map(byte).collect();
    // SAFETY: the memory stays until this process ends, and only the grant accesses it.
    let grant = unsafe { MemoryGrant::new(memory.address_mut() + BEFORE, LEN, access) }.unwrap();
    control.write_all(&grant.file().as_raw_fd().to_le_bytes()).unwrap();
    let mut command = [0];
    while control.read_exact(&mut command).is_ok() {
        let mut granted = vec![0; LEN as usize];
        grant.read(0, &mut granted).unwrap();
        match what.split(',').next() {
            Some("revoke") => {
                grant.revoke(LONG).unwrap();
                control.write_all(&[granted[0]]).unwrap();
            }
            // The answer comes from another program, which has another address space.
            Some("execute") => {
                let error = Command::new("/bin/sh")
                    .args(["-c", "printf x >&0; cat <&0 >/dev/null"])
                    .stdin(OwnedFd::from(control))
                    .exec();
                panic!("no shell: {error}");
            }
            _ => control.write_all(&[granted[0]]).unwrap(),
        }
    }
    drop(memory);
    std::process::exit(0);
}

#[test]
fn granted_bytes_are_read_and_written_and_no_others() {
    let mut owner = Owner::new(Access::ReadWrite, "look");
    let memory = GrantedMemory::open(owner.file.as_fd()).unwrap();
    assert_eq!((memory.file().len(), memory.file().access()), (LEN, Access::ReadWrite));
    let mut bytes = vec![0; LEN as usize];
    memory.read(0, &mut bytes).unwrap();
    assert!((0..LEN).all(|at| bytes[at as usize] == byte(BEFORE + at)));
    memory.write(0, &[200]).unwrap();
    assert_eq!(owner.act(), 200);
    memory.write(LEN - 2, &[1, 2]).unwrap();
    memory.read(LEN - 2, &mut bytes[..2]).unwrap();
    assert_eq!(bytes[..2], [1, 2]);
    memory.read(LEN, &mut []).unwrap();
    for (at, len) in [(LEN, 1), (LEN - 1, 2), (0, LEN + 1), (u64::MAX, 1), (u64::MAX - 1, 8), (LEN + 5, 0)] {
        let read = memory.read(at, &mut vec![0; len as usize]).unwrap_err();
        assert!(matches!(read, GrantError::Outside { .. }), "{at} {len}: {read}");
        let written = memory.write(at, &vec![0; len as usize]).unwrap_err();
        assert!(matches!(written, GrantError::Outside { .. }), "{at} {len}: {written}");
    }
}

#[test]
fn memory_granted_for_reading_is_not_written() {
    let mut owner = Owner::new(Access::Read, "look");
    let memory = GrantedMemory::open(owner.file.as_fd()).unwrap();
    assert!(matches!(memory.write(0, &[200]), Err(GrantError::ReadOnly)));
    let base = memory.file().address();
    let space = Remote::granted(memory);
    assert!(space.write(base, &[1], WriteHint::Cache).is_err() && !space.page_request(base, true));
    assert_eq!(owner.act(), byte(BEFORE));
}

#[test]
fn after_a_revoke_no_byte_is_reached() {
    let mut owner = Owner::new(Access::ReadWrite, "revoke");
    let memory = GrantedMemory::open(owner.file.as_fd()).unwrap();
    let space = Remote::granted(GrantedMemory::open(owner.file.as_fd()).unwrap());
    let base = memory.file().address();
    assert!(space.write(base, &[9; 8], WriteHint::Cache).is_ok() && !memory.file().is_revoked());
    assert_eq!(owner.act(), 9);
    assert!(memory.file().is_revoked());
    assert!(matches!(memory.read(0, &mut [0; 8]), Err(GrantError::Revoked)));
    assert!(matches!(memory.write(0, &[0; 8]), Err(GrantError::Revoked)));
    assert!(space.read(base, &mut [0; 8]).is_err() && !space.page_request(base, true));
    assert!(matches!(GrantedMemory::open(owner.file.as_fd()), Err(GrantError::Revoked)));
}

#[test]
fn a_program_that_replaces_the_owner_is_never_accessed() {
    let mut owner = Owner::new(Access::ReadWrite, "execute");
    let memory = GrantedMemory::open(owner.file.as_fd()).unwrap();
    memory.read(0, &mut [0; 8]).unwrap();
    assert_eq!(owner.act(), b'x');
    assert!(matches!(memory.read(0, &mut [0; 8]), Err(GrantError::Gone { at: 0 })));
    assert!(matches!(memory.write(0, &[0; 8]), Err(GrantError::Gone { at: 0 })));
    let again = GrantedMemory::open(owner.file.as_fd()).unwrap_err();
    assert!(matches!(again, GrantError::NotAGrant { .. }), "{again}");
}

#[test]
fn an_owner_that_has_ended_has_no_memory() {
    let owner = Owner::new(Access::ReadWrite, "look");
    let file = owner.file.try_clone().unwrap();
    let memory = GrantedMemory::open(file.as_fd()).unwrap();
    drop(owner);
    assert!(matches!(memory.read(0, &mut [0; 8]), Err(GrantError::Gone { at: 0 })));
    assert!(matches!(memory.write(0, &[0; 8]), Err(GrantError::Gone { at: 0 })));
    assert!(GrantedMemory::open(file.as_fd()).is_err());
}

#[test]
fn granted_memory_is_a_space_with_the_owners_addresses() {
    let owner = Owner::new(Access::ReadWrite, "look");
    let memory = GrantedMemory::open(owner.file.as_fd()).unwrap();
    let (base, end) = (memory.file().address(), memory.file().address() + LEN);
    let space = Remote::granted(memory);
    let hint = WriteHint::Cache;
    space.fill(base + 1, [0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09], 40, hint).unwrap();
    let mut bytes = [0; 41];
    space.read(base, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[1], bytes[17], bytes[40]), (byte(BEFORE), 1, 1, 8));
    space.move_backward(base + 4100, base + 1, 40, hint).unwrap();
    assert_eq!(space.compare(base + 1, base + 4100, 40), Ok(None));
    space.move_forward(base + 8000, base + 1, 40, hint).unwrap();
    assert_eq!(space.compare(base + 1, base + 8000, 40), Ok(None));
    space.fill(base, [7; 2], LEN, hint).unwrap();
    assert_eq!(space.compare_pattern(base, 7, 8 * (LEN / 8)), Ok(None));
    // Ranges that leave the grant fault at its first and last byte.
    let fault = space.write(end - 10, &[5; 20], hint).unwrap_err();
    assert_eq!((fault.address, fault.done, fault.write), (end, 10, true));
    let fault = space.read(base - 1, &mut [0; 20]).unwrap_err();
    assert_eq!((fault.address, fault.done), (base - 1, 0));
    let fault = space.move_backward(base - 8, base + 8, 24, hint).unwrap_err();
    assert_eq!((fault.address, fault.done, fault.write), (base - 1, 16, true));
    assert!(space.page_request(base, true) && space.page_request(end - 1, false));
    assert!(!space.page_request(end, true) && !space.page_request(base - 1, false));
}

#[test]
fn only_files_of_grants_are_opened() {
    let refused = |file: OwnedFd| match GrantedMemory::open(file.as_fd()) {
        Err(GrantError::NotAGrant { why }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(std::fs::File::open("/dev/null").unwrap().into()), "it is not sealed");
    assert_eq!(refused(std::io::pipe().unwrap().0.into()), "it is not sealed");
    let forged = |words: &[u64], len: u64| {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let file = memfd_create("forged", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        let mut writer = std::fs::File::from(file.try_clone().unwrap());
        writer.write_all(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        writer.set_len(len).unwrap();
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).unwrap();
        refused(file)
    };
    let magic = u64::from_le_bytes(*b"telpher\x01");
    let process = u64::from(std::process::id());
    assert_eq!(forged(&[magic, process, 4096, 8, 1, 1], 16), "it is too short");
    assert_eq!(forged(&[1, process, 4096, 8, 1, 1], 4096), "it was made by something else");
    assert_eq!(forged(&[magic, process, 4096, 0, 1, 1], 4096), "its range wraps");
    assert_eq!(forged(&[magic, process, u64::MAX, 8, 1, 1], 4096), "its range wraps");
    // A victim that has granted nothing: it does not map the file.
    let gone = "its owner has ended, or is in another PID namespace";
    assert_eq!(forged(&[magic, process, 4096, 8, 1, 1], 4096), gone);
    assert_eq!(forged(&[magic, 0, 4096, 8, 1, 1], 4096), gone);
    assert_eq!(forged(&[magic, u64::MAX, 4096, 8, 1, 1], 4096), "it names no process");
}

/// Grants bytes of a test, which looks at them only after it has revoked the grant.
fn granted_for_writing(memory: &mut Vec<u8>) -> MemoryGrant {
    let len = memory.len() as u64;
    // SAFETY: the tests keep the Vec until the grant is revoked, and do not use its bytes before.
    unsafe { MemoryGrant::new(memory.address_mut(), len, Access::ReadWrite) }.unwrap()
}

/// True if `look` returns true in a forked child.
fn holds_in_a_forked_child(look: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls `look`, which needs no other thread of this process, and ends.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::_exit(i32::from(!look()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[test]
fn a_forked_child_uses_neither_side_of_a_grant_and_leaves_it_to_its_parent() {
    let mut memory = vec![5_u8; 100];
    let grant = granted_for_writing(&mut memory);
    let granted = GrantedMemory::open(grant.file()).unwrap();
    let refused = |result: Result<(), GrantError>| matches!(result, Err(GrantError::Forked));
    assert!(holds_in_a_forked_child(|| refused(grant.read(0, &mut [0])) && refused(grant.write(0, &[9]))));
    assert!(holds_in_a_forked_child(|| refused(granted.read(0, &mut [0])) && refused(granted.write(0, &[9]))));
    // What the child has of the grant names no byte of it, and a revoke there ends nothing.
    assert!(holds_in_a_forked_child(|| grant.len() == 0 && grant.revoke(LONG).is_ok()));
    // A child grants memory of its own.
    assert!(holds_in_a_forked_child(|| granted_for_writing(&mut vec![0; 8]).revoke(LONG).is_ok()));
    granted.write(1, &[6]).unwrap();
    let mut bytes = [0; 2];
    grant.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5, 6]);
    grant.revoke(LONG).unwrap();
    assert_eq!(memory[..2], bytes);
}

#[test]
fn an_owner_uses_its_own_grant_and_gets_the_memory_back() {
    let mut memory = vec![5_u8; 100];
    for (address, len) in [(memory.address_mut(), 0), (u64::MAX, 8)] {
        // SAFETY: nothing is granted.
        let grant = unsafe { MemoryGrant::new(address, len, Access::Read) };
        assert!(matches!(grant, Err(GrantError::Range { .. })), "{len}");
    }
    let grant = granted_for_writing(&mut memory);
    let granted = GrantedMemory::open(grant.file()).unwrap();
    granted.write(10, &[6; 10]).unwrap();
    grant.write(20, &[7; 10]).unwrap();
    assert!(matches!(grant.write(91, &[7; 10]), Err(GrantError::Outside { at: 91, len: 10, size: 100 })));
    let mut bytes = [0; 30];
    grant.read(0, &mut bytes).unwrap();
    assert_eq!((bytes[9], bytes[10], bytes[19], bytes[20], bytes[29]), (5, 6, 6, 7, 7));
    grant.revoke(LONG).unwrap();
    grant.revoke(LONG).unwrap();
    assert_eq!(memory[..30], bytes);
    // SAFETY: the memory outlives the grant, and nothing accesses it.
    let readable = unsafe { MemoryGrant::new(memory.address(), 100, Access::Read) }.unwrap();
    assert!(matches!(readable.write(0, &[0]), Err(GrantError::ReadOnly)));
    readable.revoke(LONG).unwrap();
}

/// A revoke waits for the lock of an access. Another process that keeps the lock does not keep the owner for ever.
#[test]
fn a_file_that_stays_locked_ends_a_revoke_with_an_error() {
    use rustix::fs::{FlockOperation, flock};
    let mut memory = vec![5_u8; 100];
    let grant = granted_for_writing(&mut memory);
    let granted = GrantedMemory::open(grant.file()).unwrap();
    let path = format!("/proc/self/fd/{}", grant.file().as_raw_fd());
    let hostile = std::fs::File::open(path).unwrap();
    flock(&hostile, FlockOperation::LockShared).unwrap();
    let error = grant.revoke(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error, GrantError::InUse { .. }), "{error}");
    assert!(matches!(granted.read(0, &mut [0]), Err(GrantError::Revoked)));
    drop(hostile);
    grant.revoke(LONG).unwrap();
    assert_eq!(memory[0], 5);
}

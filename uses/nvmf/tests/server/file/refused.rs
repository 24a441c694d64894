//! What is used where the kernel refuses a call. A filter of the test's thread refuses it, as a container does.
#![allow(unsafe_code, reason = "prctl installs the filter")]

use super::requests::{Fixture, write};
use super::{FileEngine, FilePool, FileStorage, SIZE, TestFile, options};
use std::sync::Arc;
use telpher_nvmf::file::{Access, EngineInUse, FileOptions, PageCacheReason};
use telpher_nvmf::loops::Loops;
use telpher_nvmf::status::Status;
use telpher_nvmf::storage::StorageRequest;

/// The arguments with which a call is refused: the second one has this value, and the third one has one of these bits.
type Arguments = Option<(i32, i32)>;

/// Refuses a system call, with this error, to a new thread and the threads that it starts.
pub(crate) fn with_refused<T: Send>(
    call: libc::c_long,
    arguments: Arguments,
    errno: i32,
    run: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse(call, arguments, errno);
            run()
        });
        thread.join().unwrap()
    })
}

fn refuse(call: libc::c_long, arguments: Arguments, errno: i32) {
    let step = |code, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    // Offsets in struct seccomp_data: the number of the call is at 0, the arguments of 8 bytes are from 16.
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let answer = |answer| step(libc::BPF_RET, 0, 0, answer);
    let number = u32::try_from(call).unwrap();
    let (jump_if_equal, jump_if_bits) = (libc::BPF_JMP | libc::BPF_JEQ, libc::BPF_JMP | libc::BPF_JSET);
    let mut program = match arguments {
        None => vec![load(0), step(jump_if_equal, 0, 1, number)],
        Some((second, third)) => vec![
            load(0),
            step(jump_if_equal, 0, 5, number),
            load(16 + 8),
            step(jump_if_equal, 0, 3, second.cast_unsigned()),
            load(16 + 2 * 8),
            step(jump_if_bits, 0, 1, third.cast_unsigned()),
        ],
    };
    program.push(answer(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()));
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
    // SAFETY: the program is valid during the call, which copies it. Both calls change this thread only.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn threads_replace_an_io_uring_that_is_refused() {
    for (errno, text) in [(libc::EPERM, "Operation not permitted"), (libc::ENOSYS, "Function not implemented")] {
        with_refused(libc::SYS_io_uring_setup, None, errno, || {
            let loops = Arc::new(Loops::default());
            let refused = FilePool::with_options(options(FileEngine::Uring, true), &loops).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(errno));
            let pool = FilePool::with_options(FileOptions::default(), &loops).unwrap();
            let EngineInUse::Threads { count: 4, refusal: Some(refusal) } = pool.engine() else { panic!("{pool:?}") };
            assert_eq!(refusal.raw_os_error(), Some(errno));
            let message = format!("io_uring is refused: {text} (os error {errno}); 4 threads read and write");
            assert_eq!(pool.engine().to_string(), message);
            let file = TestFile::new("no-uring");
            let fixture = Fixture::new(&file.0, FileOptions::default());
            fixture.request(write(8192, &[7; 8192], 3000)).unwrap();
            assert!(fixture.read(8192, 8192) == [7; 8192]);
        });
    }
}

#[test]
fn threads_are_the_choice_for_the_page_cache() {
    let pool = FilePool::with_options(options(FileEngine::Auto, false), &Arc::new(Loops::default())).unwrap();
    assert!(matches!(pool.engine(), EngineInUse::Threads { count: 2, refusal: None }));
    assert_eq!(pool.engine().to_string(), "2 threads read and write");
}

#[test]
fn the_page_cache_replaces_o_direct_that_is_refused() {
    with_refused(libc::SYS_fcntl, Some((libc::F_SETFL, libc::O_DIRECT)), libc::EINVAL, || {
        let file = TestFile::new("no-direct");
        let fixture = Fixture::new(&file.0, FileOptions::default());
        let access = fixture.storage.access();
        assert_eq!(access, Access::PageCache(PageCacheReason::Refused(libc::EINVAL)));
        assert_eq!(access.to_string(), "page cache (O_DIRECT is refused: Invalid argument (os error 22))");
        fixture.request(write(512, &[7; 8192], 3000)).unwrap();
        assert!(fixture.read(512, 8192) == [7; 8192]);
    });
}

#[test]
fn a_file_system_in_memory_serves_with_or_without_o_direct() {
    // Linux has O_DIRECT for tmpfs since 6.6.
    let path = std::path::Path::new("/dev/shm").join(format!("telpher-nvmf-{}-memory", std::process::id()));
    let file = TestFile(path);
    let fixture = Fixture::new(&file.0, FileOptions::default());
    let access = fixture.storage.access();
    let expected = matches!(access, Access::Direct(_) | Access::PageCache(PageCacheReason::Refused(libc::EINVAL)));
    assert!(expected, "{access}");
    fixture.request(write(4096, &[7; 8192], 3000)).unwrap();
    assert!(fixture.read(4096, 8192) == [7; 8192]);
}

#[test]
fn zeroes_are_written_where_fallocate_is_refused() {
    with_refused(libc::SYS_fallocate, None, libc::EOPNOTSUPP, || {
        for direct in [true, false] {
            let file = TestFile::new("no-holes");
            let fixture = Fixture::new(&file.0, options(FileEngine::Threads, direct));
            fixture.request(write(0, &[7; 200 << 10], 65536)).unwrap();
            let zeroes = StorageRequest::WriteZeroes { start: 4096, len: 132 << 10, force: true };
            fixture.request(zeroes).unwrap();
            fixture.request(StorageRequest::Deallocate { ranges: vec![(0, 4096)] }).unwrap();
            let expected = [vec![7; 4096], vec![0; 132 << 10], vec![7; 64 << 10]].concat();
            assert!(fixture.read(0, 200 << 10) == expected);
        }
    });
}

#[test]
fn errors_of_writes_and_flushes_have_their_status() {
    for (errno, status) in [
        (libc::ENOSPC, Status::CAPACITY_EXCEEDED),
        (libc::EDQUOT, Status::CAPACITY_EXCEEDED),
        (libc::EFBIG, Status::CAPACITY_EXCEEDED),
        (libc::EIO, Status::WRITE_FAULT),
    ] {
        let threads = options(FileEngine::Threads, true);
        with_refused(libc::SYS_pwritev2, None, errno, || {
            let file = TestFile::new("write-error");
            let fixture = Fixture::new(&file.0, threads);
            assert_eq!(fixture.request(write(0, &[7; 4096], 4096)).unwrap_err(), status);
        });
        with_refused(libc::SYS_fdatasync, None, errno, || {
            let file = TestFile::new("flush-error");
            let fixture = Fixture::new(&file.0, threads);
            assert_eq!(fixture.request(StorageRequest::Flush).unwrap_err(), status);
            let zeroes = StorageRequest::WriteZeroes { start: 0, len: 4096, force: true };
            assert_eq!(fixture.request(zeroes).unwrap_err(), status);
        });
        with_refused(libc::SYS_pread64, None, errno, || {
            let file = TestFile::new("read-error");
            let fixture = Fixture::new(&file.0, options(FileEngine::Threads, false));
            let read = StorageRequest::Read { start: 0, len: 4096 };
            assert_eq!(fixture.request(read).unwrap_err(), Status::READ_ERROR);
        });
    }
    let loops = Arc::new(Loops::default());
    let pool = FilePool::with_options(options(FileEngine::Threads, true), &loops).unwrap();
    let file = TestFile::new("no-space");
    let error = with_refused(libc::SYS_ftruncate, None, libc::ENOSPC, || FileStorage::create(&file.0, SIZE, &pool));
    assert!(error.unwrap_err().to_string().starts_with("cannot set the size of"));
}

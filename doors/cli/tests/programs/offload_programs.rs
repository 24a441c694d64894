//! Real programs under `telpher offload`, unmodified: their data is as without it, and the device executes their long
//! calls.
//!
//! Each test compares all data with what was put in, or with the result of the same program without offload. `./test`
//! runs redis, SQLite, zstd and Perl, and `./soak` all of them.

use crate::harness::{TELPHER, eventually, lacking, test_folder};
use crate::offload::{ALWAYS, offload, sum};
use crate::schemas;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use telpher_os::Random;

/// A server under `telpher offload`, with a socket in a folder of its own.
struct Server {
    child: Child,
    folder: PathBuf,
    is_offloaded: bool,
}

impl Server {
    /// Starts a server. `arguments` gets the path of its socket, which is short: the kernel allows 107 bytes.
    fn start(name: &str, arguments: impl FnOnce(&Path) -> Vec<String>) -> Server {
        let offload = |folder: &Path| {
            let mut command = Command::new(TELPHER);
            command.args(["offload", "--format", "json", "--output"]).arg(folder.join("offload.json")).args(ALWAYS);
            command.arg("--");
            command
        };
        let mut server = Server::start_by(name, offload, arguments);
        server.is_offloaded = true;
        server
    }

    /// Starts a server without offload.
    fn start_alone(name: &str, arguments: impl FnOnce(&Path) -> Vec<String>) -> Server {
        Server::start_by(name, |_| Command::new("env"), arguments)
    }

    /// Starts a server by a command that executes its arguments. `launcher` gets the server's folder.
    fn start_by(
        name: &str,
        launcher: impl FnOnce(&Path) -> Command,
        arguments: impl FnOnce(&Path) -> Vec<String>,
    ) -> Server {
        let folder = std::env::temp_dir().join(format!("telpher-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = launcher(&folder);
        command.args(arguments(&folder.join("socket"))).current_dir(&folder);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Server { child, folder, is_offloaded: false }
    }

    /// Connects to the server, as soon as it listens.
    fn connect(&mut self) -> BufReader<UnixStream> {
        let mut stream = None;
        eventually("the server listens", || {
            assert!(self.child.try_wait().unwrap().is_none(), "the server has ended");
            stream = UnixStream::connect(self.folder.join("socket")).ok();
            stream.is_some()
        });
        BufReader::new(stream.expect("a connection"))
    }

    /// Waits for the end of the server, which was asked to end. Returns the counters of its processes; nothing without
    /// offload.
    fn end(mut self) -> Vec<Value> {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        let counters = std::fs::read(self.folder.join("offload.json"));
        if !self.is_offloaded {
            return Vec::new();
        }
        schemas::list(counters.expect("a summary"), "processes")
    }

    /// Asks the server to end by SIGTERM, and waits for it.
    fn terminate(self) -> Vec<Value> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM)
            .unwrap();
        self.end()
    }
}

impl Drop for Server {
    /// A test that fails leaves no server behind.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // `telpher offload` passes SIGTERM on.
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(&self.child),
                rustix::process::Signal::TERM,
            );
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Values around the sizes at which servers copy otherwise: buffers of 16 KiB, query buffers of 32 KiB, and more.
fn values() -> Vec<Vec<u8>> {
    let mut random = Random::new(23);
    let sizes = [1, 100, 4095, 4096, 16_383, 16_384, 32_767, 32_768, 65_536, 65_538, 200_000, 1 << 20];
    let bytes = |size| {
        let mut bytes = vec![0; size];
        random.fill(&mut bytes);
        bytes
    };
    sizes.into_iter().cycle().take(60).map(bytes).collect()
}

/// Reads one line without its end.
fn line(stream: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Reads so many bytes and the end of the line behind them.
fn block(stream: &mut BufReader<UnixStream>, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len + 2];
    stream.read_exact(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// The device executed a large part of the bytes.
fn expect_offloaded(processes: &[Value], at_least: u64) {
    let bytes = sum(processes, "device_bytes");
    assert!(bytes >= at_least, "{bytes} bytes by the device: {processes:?}");
}

fn redis_server(name: &str) -> Server {
    Server::start(name, |socket| {
        let socket = socket.display().to_string();
        ["redis-server", "--port", "0", "--save", "", "--unixsocket", &socket].map(String::from).to_vec()
    })
}

fn memcached_server(name: &str) -> Server {
    Server::start(name, |socket| {
        let socket = socket.display().to_string();
        // Root must name another user; this program needs no rights.
        let user = if rustix::process::geteuid().is_root() { "root" } else { "nobody" };
        ["memcached", "-u", user, "-A", "-m", "256", "-I", "2m", "-t", "2", "-s", &socket].map(String::from).to_vec()
    })
}

fn store_in_memcached(memcached: &mut BufReader<UnixStream>, values: &[Vec<u8>]) {
    for (key, value) in values.iter().enumerate() {
        write!(memcached.get_mut(), "set key{key} 0 0 {}\r\n", value.len()).unwrap();
        memcached.get_mut().write_all(value).unwrap();
        memcached.get_mut().write_all(b"\r\n").unwrap();
        assert_eq!(line(memcached), "STORED");
    }
}

fn compare_with_memcached(memcached: &mut BufReader<UnixStream>, values: &[Vec<u8>]) {
    for (key, value) in values.iter().enumerate() {
        write!(memcached.get_mut(), "get key{key}\r\n").unwrap();
        assert_eq!(line(memcached), format!("VALUE key{key} 0 {}", value.len()));
        assert!(block(memcached, value.len()) == *value, "the value of key {key}");
        assert_eq!(line(memcached), "END");
    }
}

/// Runs a load generator to its end; it must succeed and report no error. Returns what it printed.
fn generate_load(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let (printed, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && errors.is_empty(), "{program}: {}\n{printed}{errors}", done.status);
    assert!(!printed.to_lowercase().contains("error"), "{program}: {printed}");
    printed.into_owned()
}

#[test]
fn redis_returns_every_value_that_it_was_given() {
    const NAME: &str = "redis_returns_every_value_that_it_was_given";
    if lacking(NAME, &[("redis-server", "redis-server")]) {
        return;
    }
    let mut server = redis_server("redis-offload");
    let mut redis = server.connect();
    let values = values();
    // The second round replaces each value by one of another size.
    for round in 0..2 {
        let of = |key: usize| &values[(key + 5 * round) % values.len()];
        for key in 0..values.len() {
            let value = of(key);
            // The protocol has the length before each word, so that a value may be any bytes.
            let mut request = format!("*3\r\n$3\r\nSET\r\n$6\r\nkey{key:03}\r\n${}\r\n", value.len()).into_bytes();
            request.extend(value);
            request.extend(b"\r\n");
            redis.get_mut().write_all(&request).unwrap();
            assert_eq!(line(&mut redis), "+OK");
        }
        for key in 0..values.len() {
            write!(redis.get_mut(), "*2\r\n$3\r\nGET\r\n$6\r\nkey{key:03}\r\n").unwrap();
            let value = of(key);
            assert_eq!(line(&mut redis), format!("${}", value.len()));
            assert!(block(&mut redis, value.len()) == *value, "the value of key {key} in round {round}");
        }
    }
    write!(redis.get_mut(), "SHUTDOWN NOSAVE\r\n").unwrap();
    expect_offloaded(&server.end(), 10 << 20);
}

#[test]
#[ignore = "./soak runs it"]
fn memcached_returns_every_value_that_it_was_given() {
    const NAME: &str = "memcached_returns_every_value_that_it_was_given";
    if lacking(NAME, &[("memcached", "memcached")]) {
        return;
    }
    let mut server = memcached_server("memcached-offload");
    let mut memcached = server.connect();
    let values = values();
    store_in_memcached(&mut memcached, &values);
    compare_with_memcached(&mut memcached, &values);
    write!(memcached.get_mut(), "shutdown\r\n").unwrap();
    // It reads long values straight into its items, and copies what came with the command.
    expect_offloaded(&server.end(), 100 << 10);
}

/// Returns the value that `redis-benchmark` stores under every key. Source: redis 7.0, `genBenchmarkRandomData`.
fn value_of_redis_benchmark(len: usize) -> Vec<u8> {
    let states =
        std::iter::successors(Some(1234_u32), |state| Some(state.wrapping_mul(1_103_515_245).wrapping_add(12_345)));
    states.skip(1).take(len).map(|state| b'0' + u8::try_from((state >> 16) & 63).unwrap()).collect()
}

/// redis under its own load generator.
#[test]
#[ignore = "./soak runs it"]
fn redis_answers_its_own_load_generator_and_has_its_values() {
    const NAME: &str = "redis_answers_its_own_load_generator_and_has_its_values";
    if lacking(NAME, &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")]) {
        return;
    }
    const VALUE: usize = 65_536;
    let mut server = redis_server("redis-load");
    let mut redis = server.connect();
    let socket = server.folder.join("socket").display().to_string();
    let value = VALUE.to_string();
    let load = ["-s", &socket, "-t", "set,get", "-n", "1000", "-c", "4", "-r", "100", "-d", &value, "--csv"];
    let printed = generate_load("redis-benchmark", &load);
    assert!(["\"SET\"", "\"GET\""].iter().all(|test| printed.contains(test)), "{printed}");
    let expected = value_of_redis_benchmark(VALUE);
    let mut found = 0;
    for key in 0..100 {
        write!(redis.get_mut(), "*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n").unwrap();
        let head = line(&mut redis);
        if head != "$-1" {
            assert_eq!(head, format!("${VALUE}"), "key {key}");
            assert!(block(&mut redis, VALUE) == expected, "the value of key {key}");
            found += 1;
        }
    }
    assert!(found > 90, "{found} of 100 keys have a value after 1000 sets of random keys");
    write!(redis.get_mut(), "SHUTDOWN NOSAVE\r\n").unwrap();
    // Each of 1000 sets and 1000 gets copies most of a value at least once.
    expect_offloaded(&server.end(), 100 << 20);
}

/// memcached under the load generator of libmemcached, which checks the answers and not the values; so values of this
/// test are there before and afterwards.
#[test]
#[ignore = "./soak runs it"]
fn memcached_answers_a_load_generator_and_keeps_its_values() {
    const NAME: &str = "memcached_answers_a_load_generator_and_keeps_its_values";
    if lacking(NAME, &[("memcached", "memcached"), ("memcslap", "libmemcached-tools")]) {
        return;
    }
    let mut server = memcached_server("memcached-load");
    let mut memcached = server.connect();
    let values = values();
    store_in_memcached(&mut memcached, &values);
    let servers = format!("--servers={}", server.folder.join("socket").display());
    for test in ["set", "get", "mget"] {
        let test = format!("--test={test}");
        generate_load("memcslap", &[&servers, &test, "--concurrency=2", "--execute-number=500"]);
    }
    compare_with_memcached(&mut memcached, &values);
    write!(memcached.get_mut(), "stats\r\n").unwrap();
    let mut items = 0;
    loop {
        let line = line(&mut memcached);
        if line == "END" {
            break;
        }
        items = line.strip_prefix("STAT curr_items ").map_or(items, |number| number.parse().unwrap());
    }
    assert!(items > values.len() + 1000, "{items} values are there");
    write!(memcached.get_mut(), "shutdown\r\n").unwrap();
    expect_offloaded(&server.end(), 100 << 10);
}

/// Runs a program with and without offload; returns the counters. Both must succeed and print the same.
fn same_output(name: &str, program: &[&str]) -> Vec<Value> {
    let alone = Command::new(program[0]).args(&program[1..]).current_dir(test_folder(name)).output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    let (done, processes) = offload(name, &ALWAYS, program);
    assert_eq!(done.code(), 0, "{done}");
    assert_eq!(done.stdout, String::from_utf8_lossy(&alone.stdout), "{done}");
    processes
}

#[test]
fn sqlite_has_the_same_content_and_passes_its_own_check() {
    const NAME: &str = "sqlite_has_the_same_content_and_passes_its_own_check";
    if lacking(NAME, &[("sqlite3", "sqlite3")]) {
        return;
    }
    let file = test_folder("offload_sqlite").join("database");
    let script = "pragma page_size=65536; pragma journal_mode=wal; create table t(k integer primary key, v text);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 1500)
        insert into t select i, printf('%d-%.*c', i, 20000 + i, char(97 + i % 26)) from n;
        update t set v = v || v where k % 3 = 0; delete from t where k % 7 = 0; vacuum; pragma integrity_check;
        select count(*), sum(length(v)), sum(instr(v, char(97 + k % 26))) from t;
        select sum(v = printf('%d-%.*c', k, 20000 + k, char(97 + k % 26))) from t where k % 3 > 0;";
    let run = format!("rm -f {0}*; sqlite3 {0} \"{script}\"", file.display());
    let processes = same_output("offload_sqlite_run", &["sh", "-c", &run]);
    expect_offloaded(&processes, 10 << 20);
}

#[test]
fn archives_of_zstd_and_perls_strings_are_the_same() {
    const NAME: &str = "archives_of_zstd_and_perls_strings_are_the_same";
    if lacking(NAME, &[("zstd", "zstd"), ("perl", "perl"), ("sha256sum", "coreutils")]) {
        return;
    }
    let plain: Vec<u8> =
        (0..4_000_000_u32).flat_map(|at| ((at / 5).wrapping_mul(2_654_435_761) >> 3).to_le_bytes()).collect();
    let file = test_folder("offload_zstd").join("plain");
    std::fs::write(&file, plain).unwrap();
    let file = file.display();
    let script = format!(
        "zstd -q -T1 -c {file} | sha256sum && zstd -q -T1 -c {file} | zstd -q -d -c | cmp - {file} && \
         perl -e 'my $s = \"\"; for my $i (1..200) {{ $s .= chr(65 + $i % 26) x 50000; my $t = substr($s, 7); \
         $t = $t . $s; $s = substr($t, 3, 1000000) if length($t) > 2000000 }} print length($s), \" \", \
         unpack(\"%32C*\", $s), \"\\n\"'"
    );
    expect_offloaded(&same_output("offload_zstd_run", &["sh", "-c", &script]), 50 << 20);
}

/// Programs that start many others: git with its helpers, and a compiler with its own.
#[test]
#[ignore = "./soak runs it"]
fn git_and_gcc_write_the_same_files() {
    const NAME: &str = "git_and_gcc_write_the_same_files";
    if lacking(NAME, &[("git", "git"), ("gcc", "gcc"), ("sha256sum", "coreutils")]) {
        return;
    }
    let folder = test_folder("offload_git");
    let mut random = Random::new(24);
    for number in 0..20 {
        let content: Vec<u8> = (0..100_000).map(|_| b'a' + u8::try_from(random.below(26)).unwrap_or(0)).collect();
        std::fs::write(folder.join(format!("file{number}")), content).unwrap();
    }
    std::fs::write(folder.join("main.c"), "#include <stdio.h>\nint main(void) { return puts(\"built\") < 0; }\n")
        .unwrap();
    let script = format!(
        "set -e; cd {}; rm -rf .git copy program; export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null \
         GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'; \
         git init -q -b main .; git add .; git -c user.name=t -c user.email=t@example.com commit -q -m all; \
         git clone -q . copy; git -C copy fsck --full 2>/dev/null; git -C copy rev-parse HEAD; rm -rf copy; \
         gcc -O1 -o program main.c; ./program; sha256sum < program",
        folder.display()
    );
    let processes = same_output("offload_git_run", &["sh", "-c", &script]);
    assert!(processes.len() >= 5, "git and gcc start other programs: {processes:?}");
}

/// Words that no page repeats, and that compress well.
fn page_of_words() -> Vec<u8> {
    let mut random = Random::new(25);
    let mut word = |_| format!("{:x} ", random.below(1 << 20)).into_bytes();
    (0..700_000).flat_map(&mut word).collect()
}

/// Returns the arguments of nginx with a page, behind a socket, and writes its configuration.
fn nginx(socket: &Path, page: &[u8]) -> Vec<String> {
    let folder = socket.parent().unwrap();
    std::fs::write(folder.join("page.txt"), page).unwrap();
    let folder = folder.display();
    // As root, nginx would change to a user that cannot read the folder.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let text = format!(
        "{user} daemon off; error_log {folder}/log; pid {folder}/pid; worker_processes 1; events {{ }} http {{ \
         access_log off; default_type text/plain; gzip on; gzip_comp_level 1; gzip_types text/plain; \
         gzip_http_version 1.0; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; \
         fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e; \
         server {{ listen unix:{}; root {folder}; }} }}",
        socket.display()
    );
    let configuration = socket.with_file_name("nginx.conf");
    std::fs::write(&configuration, text).unwrap();
    ["nginx", "-e", &format!("{folder}/log"), "-c", &configuration.display().to_string()].map(String::from).to_vec()
}

/// Asks nginx for the page, compressed or not. Returns the body of its answer.
fn answer_of_nginx(server: &mut Server, encoding: &str) -> Vec<u8> {
    let mut stream = server.connect();
    write!(stream.get_mut(), "GET /page.txt HTTP/1.0\r\nHost: x\r\nAccept-Encoding: {encoding}\r\n\r\n").unwrap();
    let mut is_encoded = false;
    loop {
        match line(&mut stream).as_str() {
            "" => break,
            header => is_encoded |= header.eq_ignore_ascii_case("content-encoding: gzip"),
        }
    }
    assert_eq!(is_encoded, encoding == "gzip");
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    body
}

#[test]
#[ignore = "./soak runs it"]
fn nginx_compresses_a_page_to_the_same_bytes() {
    const NAME: &str = "nginx_compresses_a_page_to_the_same_bytes";
    if lacking(NAME, &[("nginx", "nginx-light")]) {
        return;
    }
    let page = page_of_words();
    let mut alone = Server::start_alone("nginx-alone", |socket| nginx(socket, &page));
    let expected = answer_of_nginx(&mut alone, "gzip");
    alone.terminate();
    assert!(expected.len() < page.len() * 3 / 4, "{} bytes are not compressed", expected.len());
    let mut server = Server::start("nginx-offload", |socket| nginx(socket, &page));
    // The worker opens its device 100 ms after it was forked. Compressing so much takes longer.
    for _ in 0..10 {
        assert!(answer_of_nginx(&mut server, "gzip") == expected);
        assert!(answer_of_nginx(&mut server, "identity") == page);
    }
    expect_offloaded(&server.terminate(), 5 << 20);
}

#[test]
#[ignore = "./soak runs it"]
fn rsync_copies_a_folder_to_the_same_bytes() {
    const NAME: &str = "rsync_copies_a_folder_to_the_same_bytes";
    if lacking(NAME, &[("rsync", "rsync"), ("diff", "diffutils")]) {
        return;
    }
    let folder = test_folder("offload_rsync");
    let _ = std::fs::remove_dir_all(folder.join("from"));
    std::fs::create_dir_all(folder.join("from/below")).unwrap();
    let mut random = Random::new(26);
    for (name, size) in [("empty", 0), ("short", 100), ("long", 3_000_001), ("below/longer", 8 << 20)] {
        let mut content = vec![0; size];
        random.fill(&mut content);
        std::fs::write(folder.join("from").join(name), content).unwrap();
    }
    // The second time, it compares checksums and transfers what has changed.
    let script = format!(
        "set -e; cd {}; rm -rf to; rsync -a from/ to/; diff -r from to; echo x >> to/long; rsync -ac --no-whole-file \
         from/ to/; diff -r from to; echo same",
        folder.display()
    );
    expect_offloaded(&same_output("offload_rsync_run", &["sh", "-c", &script]), 5 << 20);
}

/// Node copies its buffers with memmove.
#[test]
#[ignore = "./soak runs it"]
fn node_has_the_same_buffers() {
    const NAME: &str = "node_has_the_same_buffers";
    if lacking(NAME, &[("node", "nodejs")]) {
        return;
    }
    let script = "const bytes = Buffer.alloc(3 << 20); \
        for (let at = 0; at < bytes.length; at++) bytes[at] = at * 31 >> 3; \
        let copy = Buffer.alloc(3 << 20); for (let call = 0; call < 20; call++) { \
        bytes.copy(copy, call, 0, bytes.length - call); \
        copy = Buffer.concat([copy.subarray(7), copy.subarray(0, 7)]); } \
        console.log(require('crypto').createHash('sha256').update(copy).digest('hex'));";
    expect_offloaded(&same_output("offload_node", &["node", "-e", script]), 50 << 20);
}

/// The virtual machine copies arrays with code of its own, and much else with the C library.
#[test]
#[ignore = "./soak runs it"]
fn java_has_the_same_arrays() {
    const NAME: &str = "java_has_the_same_arrays";
    if lacking(NAME, &[("java", "openjdk-17-jdk-headless"), ("javac", "openjdk-17-jdk-headless")]) {
        return;
    }
    let source = test_folder("offload_java").join("Main.java");
    let program = "import java.nio.ByteBuffer;
        import java.util.zip.CRC32;
        public class Main {
            public static void main(String[] words) {
                byte[] from = new byte[1 << 20], to = new byte[1 << 20];
                for (int at = 0; at < from.length; at++) from[at] = (byte) (at * 31 >> 3);
                ByteBuffer direct = ByteBuffer.allocateDirect(1 << 20);
                for (int call = 0; call < 200; call++) {
                    System.arraycopy(from, call, to, 0, from.length - call);
                    direct.clear();
                    direct.put(to);
                }
                direct.flip();
                CRC32 sum = new CRC32();
                sum.update(direct);
                sum.update(to);
                System.out.println(sum.getValue());
            }
        }";
    std::fs::write(&source, program).unwrap();
    expect_offloaded(&same_output("offload_java_run", &["java", source.to_str().unwrap()]), 1 << 20);
}

/// Builds a Go program with or without C code; `None` without Go.
fn go_program(test: &str, name: &str, source: &str, with_c: bool) -> Option<PathBuf> {
    if lacking(test, &[("go", "golang-go"), ("gcc", "gcc")]) {
        return None;
    }
    let folder = test_folder(name);
    std::fs::write(folder.join("main.go"), source).unwrap();
    let mut go = Command::new("go");
    go.args(["build", "-o", "program", "main.go"]).current_dir(&folder);
    go.env("CGO_ENABLED", if with_c { "1" } else { "0" });
    let built = go.output().expect("go runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(folder.join("program"))
}

#[test]
fn a_static_go_program_is_told_that_its_copies_cannot_be_seen() {
    const NAME: &str = "a_static_go_program_is_told_that_its_copies_cannot_be_seen";
    let source = "package main\nfunc main() { println(\"ran\") }\n";
    let Some(program) = go_program(NAME, "offload_go_static", source, false) else { return };
    let (done, processes) = offload("offload_go_static_run", &ALWAYS, &[program.to_str().unwrap()]);
    assert_eq!((done.code(), processes.len()), (126, 0), "{done}");
    let reason = "cannot be seen, because it is a statically linked Go program";
    assert!(done.stderr.contains(reason) && !done.stderr.contains("ran"), "{done}");
}

#[test]
#[ignore = "./soak runs it"]
fn the_c_code_of_a_go_program_is_offloaded_and_a_notice_says_that_the_rest_is_not() {
    const NAME: &str = "the_c_code_of_a_go_program_is_offloaded_and_a_notice_says_that_the_rest_is_not";
    let source = "package main
        // #include <stdlib.h>
        // #include <string.h>
        // static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
        // static int copies(int count) {
        //     char *from = malloc(100000), *to = malloc(100000);
        //     if (from == NULL || to == NULL) return 1;
        //     for (int at = 0; at < 100000; at++) from[at] = to[at] = (char)at;
        //     from[99999] = 1;
        //     for (int call = 0; call < count; call++) copy(to, from, 100000);
        //     return to[99999] != 1;
        // }
        import \"C\"
        import (
            \"bytes\"
            \"os\"
        )
        func main() {
            from := bytes.Repeat([]byte(\"telpher\"), 100000)
            to := make([]byte, len(from))
            copy(to, from)
            if !bytes.Equal(from, to) || C.copies(50) != 0 {
                os.Exit(1)
            }
            os.Stdout.WriteString(\"ok\\n\")
        }";
    let Some(program) = go_program(NAME, "offload_go_c", source, true) else { return };
    let (done, processes) = offload("offload_go_c_run", &ALWAYS, &[program.to_str().unwrap()]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    assert!(done.stderr.contains("is a Go program: Go copies with functions of its own"), "{done}");
    // Go's own copy of 700,000 bytes is not among them.
    assert_eq!((sum(&processes, "device_calls"), sum(&processes, "device_bytes")), (50, 5_000_000), "{processes:?}");
}

//! `telpher exporter`: its samples are what programs did, and a real Prometheus takes them, the alert rules, and every
//! query of the dashboard.

use crate::harness::{Run, Runtime, TELPHER, View, client, eventually, finish, in_both_views, lacking, test_folder};
use crate::skip::skip;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use telpher_mover::Mover;

/// A process that is killed at the end of a test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A `telpher exporter` at a port that the system chose.
pub(crate) struct Exporter {
    _child: Running,
    address: SocketAddr,
}

impl Exporter {
    pub(crate) fn start(runtime: &Runtime, options: &[&str]) -> Exporter {
        let mut command = Command::new(TELPHER);
        command.args(["exporter", "--listen", "127.0.0.1:0"]).args(options);
        command.env("TELPHER_RUNTIME_DIR", runtime.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the exporter starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("its address");
        let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics"));
        let address =
            address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("no address: {line:?}"));
        Exporter { _child: Running(child), address }
    }

    pub(crate) fn text(&self) -> String {
        let (head, body) = get(self.address, "/metrics", "text/plain").expect("the exporter answers");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        body
    }
}

/// Asks a server, and returns its headers and its body.
fn get(address: SocketAddr, target: &str, accept: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    // HTTP/1.0: the answer is in one piece.
    write!(stream, "GET {target} HTTP/1.0\r\nAccept: {accept}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok((head.to_owned(), body.to_owned()))
}

/// The sums of samples by their name.
#[derive(Debug, Default)]
pub(crate) struct Sums(BTreeMap<String, f64>);

impl Sums {
    /// Sums the samples whose labels contain a text.
    pub(crate) fn of(text: &str, labels: &str) -> Sums {
        let mut sums = BTreeMap::new();
        for line in text.lines().filter(|line| line.contains(labels)) {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().expect("a name");
            *sums.entry(name.to_owned()).or_insert(0.0) += value.parse::<f64>().expect("a number");
        }
        Sums(sums)
    }

    /// Returns a sum; NaN, which equals nothing, if there is no sample.
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::NAN)
    }
}

/// The sums of the samples of a run. Inside of a run, /sys shows its devices as hardware, too.
fn sums(text: &str) -> Sums {
    Sums::of(text, "source=\"run-")
}

/// A run with a program that has done known work, another one that has closed its queue, and both are awaited.
struct Counted {
    _run: Running,
    go_on: PathBuf,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.go_on, "");
    }
}

fn counted(view: View, runtime: &Runtime, folder: &Path) -> Option<Counted> {
    let program = client("counted")?;
    let program = program.to_str().expect("UTF-8");
    let (ready, go_on) = (folder.join("ready"), folder.join("go-on"));
    let wait = format!("touch {}; while ! [ -e {} ]; do sleep 0.05; done", ready.display(), go_on.display());
    let script = format!("{program} 3 100 4 true; {program} 5 1000 6 '{wait}'");
    let mut command = Run::on_two_queues(view).command(&["/bin/sh", "-ec", &script]);
    command.env("TELPHER_RUNTIME_DIR", runtime.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let run = Counted { _run: Running(command.spawn().expect("the run starts")), go_on };
    eventually("the programs have done their work", || ready.exists());
    Some(run)
}

in_both_views! {
    fn samples_are_what_programs_did(view: View) {
        let name = format!("exporter-{}", view.name());
        let (runtime, folder) = (Runtime::new(&name), test_folder(&name));
        let Some(_run) = counted(view, &runtime, &folder) else { return };
        for options in [&[][..], &["--per-process"]] {
            let text = Exporter::start(&runtime, options).text();
            let sums = sums(&text);
            let bytes = f64::from(3 * 100 + 5 * 1000);
            for of in ["wq", "engine", "client"] {
                let sum = |what: &str| sums.get(&format!("dsa_{of}_{what}_total"));
                let all = ["descriptors", "batch_members", "read_bytes", "written_bytes", "page_faults"].map(sum);
                assert_eq!(all, [18.0, 0.0, bytes, bytes, 0.0], "{of}: {text}");
            }
            for name in ["dsa_operations_total", "dsa_completions_total"] {
                assert_eq!(sums.get(name), 18.0, "{text}");
            }
            assert_eq!(sums.get("dsa_wq_clients"), 1.0, "{text}");
            // The first program has closed its queue.
            let is_of_client = |line: &&str| line.starts_with("dsa_client_descriptors_total{");
            let clients: Vec<&str> = text.lines().filter(is_of_client).collect();
            let has_pid = clients.iter().filter(|line| line.contains("pid=") && line.ends_with("} 11")).count();
            assert_eq!(has_pid, usize::from(!options.is_empty()), "{clients:?}");
            // Times were not recorded, which is not zero.
            assert!(sums.get("dsa_engine_busy_seconds_total").is_nan(), "{text}");
            let why = "metric=\"dsa_engine_busy_seconds_total\",reason=\"not recorded\"";
            assert!(text.contains(why), "{text}");
        }
    }
}

#[test]
fn a_file_for_node_exporter_has_the_same_samples_and_is_replaced_as_a_whole() {
    let (runtime, folder) = (Runtime::new("exporter-file"), test_folder("exporter-file"));
    let Some(_run) = counted(View::Preload, &runtime, &folder) else { return };
    let file = folder.join("telpher.prom");
    let export = |name: &Path| {
        let mut command = Command::new(TELPHER);
        command.args(["exporter", "--once", "--textfile"]).arg(name).env("TELPHER_RUNTIME_DIR", runtime.path());
        finish(&mut command, None, Duration::from_secs(120))
    };
    export(&file).expect_success();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(sums(&text).get("dsa_wq_descriptors_total"), 18.0, "{text}");
    let reader = std::fs::File::open(&file).unwrap();
    export(&file).expect_success();
    let mut old = String::new();
    (&reader).read_to_string(&mut old).unwrap();
    assert_eq!(old, text, "the old file is unchanged");
    let others = std::fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(others.count(), 0, "no draft is left");
    let done = export(&folder.join("telpher.txt"));
    assert_eq!(done.code(), 2, "{done}");
    assert!(done.stderr.contains("ends in .prom"), "{done}");
}

#[test]
fn an_address_that_others_reach_is_used_with_a_warning_only() {
    let runtime = Runtime::new("exporter-warning");
    let mut command = Command::new(TELPHER);
    command.args(["exporter", "--listen", "0.0.0.0:0"]).env("TELPHER_RUNTIME_DIR", runtime.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut exporter = Running(command.spawn().expect("the exporter starts"));
    let mut line = String::new();
    BufReader::new(exporter.0.stderr.take().expect("a pipe")).read_line(&mut line).unwrap();
    assert!(line.contains("every host that reaches 0.0.0.0:"), "{line}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(TELPHER);
    command.args(["exporter", "--listen", &taken.local_addr().unwrap().to_string()]);
    let done = finish(&mut command, None, Duration::from_secs(60));
    assert_eq!(done.code(), 1, "{done}");
    assert!(done.stderr.contains("cannot listen at 127.0.0.1:") && done.stderr.contains("--listen"), "{done}");
}

/// Starts Debian's Prometheus on a port of its own, with a folder of its own.
fn prometheus(folder: &Path, targets: &[SocketAddr], rules: &Path) -> (Running, SocketAddr) {
    let quoted: Vec<String> = targets.iter().map(|target| format!("'{target}'")).collect();
    let config = format!(
        "global: {{scrape_interval: 200ms, evaluation_interval: 500ms}}\nrule_files: ['{}']\nscrape_configs:\n  - \
         job_name: telpher\n    static_configs:\n      - targets: [{}]\n",
        rules.display(),
        quoted.join(", ")
    );
    let path = folder.join("prometheus.yml");
    std::fs::write(&path, config).unwrap();
    // The port may be taken before Prometheus has it; then it ends, and another one is tried.
    for _ in 0..10 {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", path.display())).arg(format!("--web.listen-address={address}"));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display())).arg("--log.level=warn");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Running(command.spawn().expect("Prometheus starts"));
        let mut is_up = false;
        eventually("Prometheus is ready or has ended", || {
            is_up = get(address, "/-/ready", "*/*").is_ok_and(|(head, _)| head.contains(" 200 "));
            is_up || child.0.try_wait().unwrap().is_some()
        });
        if is_up && child.0.try_wait().unwrap().is_none() {
            return (child, address);
        }
    }
    panic!("Prometheus does not start");
}

/// Returns what Prometheus answers to a query.
fn ask(address: SocketAddr, target: &str) -> Value {
    let (head, body) = get(address, target, "application/json").expect("Prometheus answers");
    let answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {head}\n{body}"));
    assert_eq!(answer["status"], "success", "{target}: {body}");
    answer["data"].clone()
}

fn query(address: SocketAddr, query: &str) -> Vec<Value> {
    let encoded: String = query
        .bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    let data = ask(address, &format!("/api/v1/query?query={encoded}"));
    data["result"].as_array().expect("a vector").clone()
}

/// Returns the queries of all panels, as Grafana would send them.
fn queries(dashboard: &str) -> Vec<String> {
    let dashboard: Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let filled = |query: &str| query.replace("$__rate_interval", "10s").replace("$source", ".*");
    targets.map(|target| filled(target["expr"].as_str().expect("a query"))).collect()
}

fn printed(what: &str) -> String {
    let done = finish(Command::new(TELPHER).args(["exporter", "--print", what]), None, Duration::from_secs(60));
    done.expect_success();
    done.stdout
}

/// Passes a text to promtool, which must find nothing.
fn promtool(words: &[&str], input: &str) {
    let done = finish(Command::new("promtool").args(words), Some(input), Duration::from_secs(60));
    done.expect_success();
    assert_eq!(done.stderr, "", "promtool {words:?}: {}", done.stdout);
}

#[test]
fn prometheus_takes_the_samples_the_rules_and_every_query_of_the_dashboard() {
    let test = "prometheus_takes_the_samples_the_rules_and_every_query_of_the_dashboard";
    if lacking(test, &[("prometheus", "prometheus"), ("promtool", "prometheus")]) {
        return;
    }
    let (runtime, folder) = (Runtime::new("exporter-prometheus"), test_folder("exporter-prometheus"));
    let Some(program) = client("counted") else { return };
    // Programs come and go, so that rates are not zero.
    let go_on = folder.join("go-on");
    std::fs::write(&go_on, "").unwrap();
    let script =
        format!("while [ -e {} ]; do {} 50 4096 10 'sleep 0.1' >/dev/null; done", go_on.display(), program.display());
    let mut command = Run::on_two_queues(View::Preload)
        .with("--inject")
        .with("retry=20%,seed=1")
        .command(&["/bin/sh", "-ec", &script]);
    command.env("TELPHER_RUNTIME_DIR", runtime.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let _run = Running(command.spawn().expect("the run starts"));
    // This process has a mover whose counts the exporter finds.
    let mover = Mover::cpu();
    let _ = mover.fill(vec![0_u8; 100], 1).wait();

    let exporters = [Exporter::start(&runtime, &[]), Exporter::start(&runtime, &["--times", "--per-process"])];
    eventually("the run has devices and times", || {
        let text = exporters[1].text();
        text.contains("dsa_execution_seconds_bucket{") && text.contains("telpher_mover_operations_total{")
    });
    for exporter in &exporters {
        promtool(&["check", "metrics"], &exporter.text());
    }
    let (head, open) = get(exporters[0].address, "/metrics", "application/openmetrics-text").unwrap();
    assert!(head.contains("application/openmetrics-text") && open.ends_with("# EOF\n"), "{head}");
    let rules = folder.join("alerts.yml");
    std::fs::write(&rules, printed("alerts")).unwrap();
    promtool(&["check", "rules", rules.to_str().unwrap()], "");

    let addresses = exporters.each_ref().map(|exporter| exporter.address);
    let (_prometheus, address) = prometheus(&folder, &addresses, &rules);
    let queries = queries(&printed("dashboard"));
    assert!(queries.len() > 25, "{queries:?}");
    let mut missing = queries.clone();
    eventually("every query of the dashboard returns data", || {
        missing.retain(|expression| query(address, expression).is_empty());
        missing.is_empty()
    });
    // Rates are what the program does.
    let copies = query(address, "sum(rate(dsa_operations_total{opcode=\"memory-move\"}[10s]))");
    let rate: f64 = copies[0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!(rate > 0.0, "{copies:?}");
    let up = query(address, "up");
    assert!(up.len() == 2 && up.iter().all(|target| target["value"][1] == "1"), "{up:?}");
    eventually("Prometheus has evaluated every rule", || {
        let groups = ask(address, "/api/v1/rules");
        let rules: Vec<&Value> =
            groups["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        assert!(rules.iter().all(|rule| rule["lastError"].as_str().unwrap_or("").is_empty()), "{rules:?}");
        rules.len() >= 5 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    let _ = std::fs::remove_file(&go_on);
}

/// A name that the dashboard or a rule uses and the exporter does not have would show nothing for ever.
#[test]
fn the_dashboard_and_the_rules_use_metrics_of_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = ["docs/telemetry.md", "docs/metrics.md"].map(|page| std::fs::read_to_string(root.join(page)).unwrap());
    let listed: BTreeSet<&str> = pages.iter().flat_map(|page| page.split('`')).collect();
    let mut used = BTreeSet::new();
    for text in [printed("alerts"), queries(&printed("dashboard")).join("\n")] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned);
        used.extend(words.filter(|word| word.starts_with("dsa_") || word.starts_with("telpher_")));
    }
    let is_listed = |word: &String| listed.contains(word.strip_suffix("_bucket").unwrap_or(word));
    let unknown: Vec<&String> = used.iter().filter(|word| !is_listed(word)).collect();
    assert!(unknown.is_empty() && used.len() > 25, "{unknown:?}");
}

/// A process group that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(leader: &Child) -> Stopped {
        let group = Pid::from_child(leader);
        kill_process_group(group, Signal::STOP).expect("the group exists");
        Stopped(group)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process_group(self.0, Signal::CONT);
    }
}

/// The processes of the device run no instruction during a scrape: they cannot allocate, lock or answer.
#[test]
fn a_scrape_needs_no_instruction_of_the_processes_of_the_device() {
    let (runtime, folder) = (Runtime::new("exporter-stopped"), test_folder("exporter-stopped"));
    let Some(run) = counted(View::Preload, &runtime, &folder) else { return };
    let exporter = Exporter::start(&runtime, &[]);
    let stopped = Stopped::new(&run._run.0);
    let text = exporter.text();
    drop(stopped);
    let sums = sums(&text);
    let totals = ["dsa_wq_descriptors_total", "dsa_client_descriptors_total"].map(|name| sums.get(name));
    assert_eq!((totals, sums.get("dsa_wq_occupancy")), ([18.0; 2], 0.0), "{text}");
}

/// The server is the unmodified gRPC library of Debian; the kubelet has the same service.
#[test]
fn queues_that_the_kubelet_has_given_are_shown_with_their_containers() {
    let test = "queues_that_the_kubelet_has_given_are_shown_with_their_containers";
    let python = Path::new("/usr/bin/python3");
    let has_grpc = || Command::new(python).args(["-c", "import grpc"]).stderr(Stdio::null()).status();
    if !python.exists() || !has_grpc().is_ok_and(|status| status.success()) {
        return skip(test, "no gRPC for Python (Debian package python3-grpcio)");
    }
    let (runtime, folder) = (Runtime::new("exporter-kubelet"), test_folder("exporter-kubelet"));
    // A path for a socket has at most 107 bytes.
    let socket = std::env::temp_dir().join(format!("telpher-kubelet-{}", std::process::id()));
    let _ = std::fs::remove_file(&socket);
    let kubelet = format!("--kubelet={}", socket.display());
    let text = Exporter::start(&runtime, &[&kubelet]).text();
    assert!(!text.contains("dsa_wq_granted_info"), "a node without a kubelet has no samples: {text}");
    // ListPodResourcesResponse { pod_resources { name, namespace, containers { name, devices { resource, ids } } } },
    // many times, so that the answer is longer than a frame and than the usual window.
    let field = |number: u8, bytes: &[u8]| {
        let len = bytes.len();
        let low = |number: usize| u8::try_from(number & 127).expect("seven bits");
        [&[number << 3 | 2, low(len) | 128, low(len >> 7)][..], bytes].concat()
    };
    let pod = |number: u32| {
        let ids = ["wq-user-shared-wq0.1-3", "wq-user-shared-wq2.7-0"].map(|id| field(2, id.as_bytes())).concat();
        let device = field(2, &[field(1, b"dsa.intel.com/wq-user-shared"), ids].concat());
        let container = field(3, &[field(1, b"server"), device].concat());
        field(1, &[field(1, format!("web-{number}").as_bytes()), field(2, b"shop"), container].concat())
    };
    let answer: Vec<u8> = (0..800).flat_map(pod).collect();
    assert!(answer.len() > 1 << 16);
    std::fs::write(folder.join("answer"), answer).unwrap();
    let mut command = Command::new(python);
    command.arg(crate::harness::source("kubelet.py")).arg(&socket).stdout(Stdio::piped());
    command.stdin(std::fs::File::open(folder.join("answer")).unwrap());
    let mut server = Running(command.spawn().expect("Python starts"));
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().expect("a pipe")).read_line(&mut line).unwrap();
    assert_eq!(line, "listening\n");
    let text = Exporter::start(&runtime, &[&kubelet]).text();
    let samples: Vec<&str> = text.lines().filter(|line| line.starts_with("dsa_wq_granted_info{")).collect();
    let expected = "dsa_wq_granted_info{source=\"hardware\",device=\"dsa2\",wq=\"wq2.7\",namespace=\"shop\",\
                    pod=\"web-799\",container_name=\"server\",resource=\"dsa.intel.com/wq-user-shared\"} 1";
    assert!(samples.len() == 1600 && samples.contains(&expected), "{} {:?}", samples.len(), samples.last());
    // A server that has gone leaves its socket, which is no node without a kubelet: it is said why.
    drop(server);
    let text = Exporter::start(&runtime, &[&kubelet]).text();
    let _ = std::fs::remove_file(&socket);
    assert!(!text.contains("dsa_wq_granted_info{"), "{text}");
    let why = "source=\"hardware\",metric=\"dsa_wq_granted_info\",reason=\"cannot connect to ";
    assert!(text.contains(why), "{text}");
}

#[test]
fn a_killed_exporter_changes_no_total() {
    let (runtime, folder) = (Runtime::new("exporter-killed"), test_folder("exporter-killed"));
    let Some(_run) = counted(View::Preload, &runtime, &folder) else { return };
    for _ in 0..3 {
        let exporter = Exporter::start(&runtime, &["--times"]);
        // Killed while it answers.
        let mut stream = TcpStream::connect(exporter.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        drop(exporter);
    }
    let sums = sums(&Exporter::start(&runtime, &[]).text());
    assert_eq!(["dsa_wq_descriptors_total", "dsa_client_descriptors_total"].map(|name| sums.get(name)), [18.0; 2]);
}

#[test]
fn another_users_exporter_reads_nothing() {
    let test = "another_users_exporter_reads_nothing";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can become another user");
    }
    if lacking(test, &[("setpriv", "util-linux")]) {
        return;
    }
    let (runtime, folder) = (Runtime::new("exporter-other"), test_folder("exporter-other"));
    let Some(_run) = counted(View::Preload, &runtime, &folder) else { return };
    let _ = Mover::cpu().fill(vec![0_u8; 100], 1).wait();
    let own = Exporter::start(&runtime, &[]).text();
    assert!(own.contains("source=\"run-") && own.contains("telpher_mover_operations_total{"), "{own}");
    // A copy, because another user may not reach the build's folder.
    let place = Path::new("/tmp").join(format!("test-exporter-other-{}", std::process::id()));
    std::fs::create_dir(&place).unwrap();
    let copy = place.join("telpher");
    std::fs::copy(TELPHER, &copy).unwrap();
    std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    command.args(["exporter", "--once", "--textfile"]).arg(place.join("other.prom"));
    command.env("TELPHER_RUNTIME_DIR", runtime.path());
    let done = finish(&mut command, None, Duration::from_secs(120));
    let text = std::fs::read_to_string(place.join("other.prom")).unwrap_or_default();
    std::fs::remove_dir_all(&place).unwrap();
    done.expect_success();
    assert!(text.contains("telpher_exporter_info{") && text.contains("telpher_exporter_processes 0"), "{text}");
    assert!(!text.contains("source=\"run-") && !text.contains("telpher_mover_"), "{text}");
}

//! What a control socket can ask for.

use crate::backend::{Backends, stored_bytes};
use crate::config::{NamespaceConfig, check_host, lowest_free};
use crate::keys::{Check, part};
use crate::statistics::Statistics;
use crate::values::{Identifier, Size};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use telpher_nvmf::limits::MOST_NAMESPACES;
use telpher_nvmf::server::{Handle, LoopReport};
use telpher_nvmf::subsystem::Subsystem;
use telpher_nvmf::target::Target;
use telpher_os::chain;

/// How long all loops may take for their reports: one may be in the middle of a long burst.
const REPORT: Duration = Duration::from_secs(10);

part! {
    /// A request.
    pub struct Request {
        /// `add-namespace`, `remove-namespace`, `resize-namespace`, `add-host`, `remove-host`, `statistics` or `show`.
        pub command: String = String::new(),
        /// The NQN of the subsystem; may be missing if there is only one.
        pub subsystem: Option<String> = None,
        /// The namespace to add.
        pub namespace: Option<NamespaceConfig> = None,
        /// The namespace to remove or to resize.
        pub nsid: Option<u32> = None,
        /// The new size.
        pub size: Option<Size> = None,
        /// The NQN of the host to add or to remove.
        pub host: Option<String> = None,
    }
}

impl Check for Request {}

/// What the control socket works on.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) target: Arc<Target>,
    pub(crate) backends: Backends,
    pub(crate) loops: Vec<Handle>,
    /// What computes digests.
    pub(crate) rule: String,
    /// What moves the bytes of sockets, as a sentence.
    pub(crate) sockets: String,
    /// Changes are made one after the other: a change of hosts reads the list and writes it.
    pub(crate) changing: Mutex<()>,
}

impl Shared {
    /// Executes a request; returns its result, or a sentence why it failed.
    pub(crate) fn execute(&self, request: &Request) -> Result<Value, String> {
        let changing = || self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match request.command.as_str() {
            "add-namespace" => {
                let _changing = changing();
                self.add_namespace(request)
            }
            "remove-namespace" => {
                let _changing = changing();
                let (nqn, nsid) = (self.subsystem(request)?.options().nqn.clone(), nsid(request)?);
                self.target.remove_namespace(&nqn, nsid).map_err(|error| error.to_string())?;
                Ok(json!({ "nsid": nsid }))
            }
            "resize-namespace" => {
                let _changing = changing();
                let (subsystem, nsid) = (self.subsystem(request)?, nsid(request)?);
                let nqn = subsystem.options().nqn.clone();
                let Size(bytes) = request.size.ok_or("the request needs 'size'")?;
                if let Some(namespace) = subsystem.namespace(nsid) {
                    let options = namespace.options();
                    let checked = stored_bytes(options.protection, bytes, options.block_bytes)
                        .and_then(|stored| self.backends.check_size(&nqn, nsid, stored));
                    checked.map_err(|error| error.to_string())?;
                }
                self.target.resize_namespace(&nqn, nsid, bytes).map_err(|error| error.to_string())?;
                Ok(json!({ "nsid": nsid, "bytes": bytes }))
            }
            "add-host" | "remove-host" => {
                let _changing = changing();
                self.change_host(request, request.command == "add-host")
            }
            "statistics" => {
                let statistics = Statistics::of(&self.reports()?);
                serde_json::to_value(statistics).map_err(|error| error.to_string())
            }
            "show" => Ok(self.show()),
            other => Err(format!("there is no command '{other}'")),
        }
    }

    fn subsystem(&self, request: &Request) -> Result<Arc<Subsystem>, String> {
        let all = self.target.subsystems().all();
        match (&request.subsystem, all.as_slice()) {
            (None, [only]) => Ok(Arc::clone(only)),
            (None, _) => Err(format!("there are {} subsystems; name one with --subsystem", all.len())),
            (Some(nqn), _) => {
                let found = all.iter().find(|subsystem| subsystem.options().nqn == *nqn);
                found.map(Arc::clone).ok_or_else(|| format!("there is no subsystem {nqn}"))
            }
        }
    }

    fn add_namespace(&self, request: &Request) -> Result<Value, String> {
        let subsystem = self.subsystem(request)?;
        let nqn = &subsystem.options().nqn;
        let namespace = request.namespace.as_ref().ok_or("the request needs 'namespace'")?;
        let used = subsystem.namespaces_above(0).into_iter().collect();
        let nsid = namespace.nsid.unwrap_or_else(|| lowest_free(&used));
        // Both before the backend is opened, which may create a file.
        if nsid > MOST_NAMESPACES {
            return Err(format!("a subsystem has at most {MOST_NAMESPACES} namespaces"));
        }
        if used.contains(&nsid) {
            return Err(format!("namespace {nsid} exists"));
        }
        let opened = self.backends.open(nqn, nsid, namespace).map_err(|error| chain(&error))?;
        let mut result = json!({ "nsid": nsid });
        if let Some(remark) = opened.remark() {
            result["remark"] = remark.into();
        }
        self.backends.add(&self.target, nqn, opened).map_err(|error| error.to_string())?;
        Ok(result)
    }

    fn change_host(&self, request: &Request, adds: bool) -> Result<Value, String> {
        let subsystem = self.subsystem(request)?;
        let host = request.host.as_ref().ok_or("the request needs 'host'")?;
        check_host(host)?;
        let nqn = &subsystem.options().nqn;
        let mut hosts = subsystem.hosts();
        match (&mut hosts, adds) {
            (None, true) => return Err(format!("any host may use {nqn}; its configuration has no list of hosts")),
            (None, false) => return Err(format!("any host may use {nqn}; give it a list of hosts in a configuration")),
            (Some(hosts), true) => {
                hosts.insert(host.clone());
            }
            (Some(hosts), false) => {
                if !hosts.remove(host) {
                    return Err(format!("{host} is not in the list of {nqn}"));
                }
            }
        }
        self.target.set_hosts(nqn, hosts).map_err(|error| error.to_string())?;
        Ok(json!({ "hosts": subsystem.hosts() }))
    }

    /// The counters of all loops.
    pub(crate) fn reports(&self) -> Result<Vec<LoopReport>, String> {
        // All are asked before the first is waited for, so that the reports are of about the same moment.
        let asked: Vec<_> = self.loops.iter().map(Handle::report).collect();
        let until = Instant::now() + REPORT;
        let rest = || until.saturating_duration_since(Instant::now());
        let received = asked.into_iter().map(|receiver| receiver.recv_timeout(rest()));
        received.collect::<Result<_, _>>().map_err(|_| "a loop did not answer; the server may be stopping".into())
    }

    /// What is served.
    fn show(&self) -> Value {
        let subsystems = self.target.subsystems();
        let listeners: Vec<String> = subsystems.listeners().iter().map(ToString::to_string).collect();
        let all = subsystems.all().into_iter().map(|subsystem| {
            let nqn = &subsystem.options().nqn;
            let namespaces = subsystem.namespaces_above(0).into_iter().filter_map(|nsid| {
                let namespace = subsystem.namespace(nsid)?;
                let options = namespace.options();
                let (backend, access) = self.backends.given(nqn, nsid);
                Some(json!({
                    "nsid": nsid,
                    "backend": backend,
                    "access": access,
                    "bytes": namespace.blocks() * namespace.block_bytes(),
                    "block_bytes": options.block_bytes,
                    "uuid": Identifier(options.uuid).to_string(),
                    "nguid": Identifier(options.nguid).to_string().replace('-', ""),
                    "read_only": options.is_read_only,
                    "protected": options.protection.is_some(),
                }))
            });
            json!({
                "nqn": nqn,
                "serial": subsystem.options().serial,
                "model": subsystem.options().model,
                "hosts": subsystem.hosts(),
                "namespaces": namespaces.collect::<Vec<_>>(),
            })
        });
        let all: Vec<Value> = all.collect();
        json!({
            "listeners": listeners,
            "digests": self.rule,
            "sockets": self.sockets,
            "files": self.backends.files(),
            "loops": self.loops.len(),
            "subsystems": all,
        })
    }
}

fn nsid(request: &Request) -> Result<u32, String> {
    request.nsid.ok_or_else(|| "the request needs 'nsid'".into())
}

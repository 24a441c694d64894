//! Network namespaces and veth pairs of a test. They disappear with the test, also if it is killed.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The interface that is the switch's port, in its namespace.
pub(crate) const PORT: &str = "port0";
/// The other end of the veth pair, in another namespace, with an address.
pub(crate) const PARTNER: &str = "partner0";
/// Ethernet and IPv4 addresses of the partner, and of the guest.
pub(crate) const PARTNER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0];
pub(crate) const PARTNER_IP: [u8; 4] = [198, 18, 79, 1];
pub(crate) const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
pub(crate) const GUEST_IP: [u8; 4] = [198, 18, 79, 2];
/// The UDP port of both sides.
pub(crate) const UDP_PORT: u16 = 4000;

/// A network namespace without a name.
pub(crate) struct Namespace(File);

impl Namespace {
    /// Creates a namespace. Returns why it cannot be created.
    pub(crate) fn new(name: &str) -> Result<Namespace, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".into());
        }
        // A number for each, since tests run side by side.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tlph-{}-{number}-{name}", std::process::id());
        let ip = |verb: &str| {
            let done = Command::new("ip").args(["netns", verb, &name]).output();
            let done = done.map_err(|error| format!("no ip (Debian package iproute2): {error}"))?;
            let why = || format!("no network namespace: {}", String::from_utf8_lossy(&done.stderr).trim());
            done.status.success().then_some(()).ok_or_else(why)
        };
        ip("add")?;
        let file = File::open(format!("/run/netns/{name}")).map_err(|error| error.to_string());
        // The file keeps the namespace, which ends with this process.
        ip("del")?;
        Ok(Namespace(file?))
    }

    /// The path with which other programs find it.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }

    /// Runs `work` on a thread in this namespace. A socket that it returns stays in the namespace.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs `ip` in this namespace.
    pub(crate) fn ip(&self, words: &str) {
        let done = self.within(|| Command::new("ip").args(words.split(' ')).output()).expect("ip runs");
        assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Two namespaces: one for the switch, with the interface [`PORT`], one with its partner.
pub(crate) struct Network {
    pub(crate) switch: Namespace,
    pub(crate) partner: Namespace,
}

impl Network {
    /// Creates the namespaces and the veth pair. Returns why there cannot be any.
    pub(crate) fn new() -> Result<Network, String> {
        let network = Network { switch: Namespace::new("switch")?, partner: Namespace::new("partner")? };
        network.connect();
        Ok(network)
    }

    /// Creates the veth pair, both ends up.
    pub(crate) fn connect(&self) {
        let Network { switch, partner } = self;
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let ip = |ip: [u8; 4]| ip.map(|byte| byte.to_string()).join(".");
        switch.ip(&format!("link add {PORT} type veth peer name {PARTNER} netns {}", partner.path().display()));
        partner.ip(&format!("link set {PARTNER} address {} up", mac(PARTNER_MAC)));
        partner.ip(&format!("addr add {}/24 dev {PARTNER}", ip(PARTNER_IP)));
        partner.ip(&format!("neigh add {} lladdr {} dev {PARTNER}", ip(GUEST_IP), mac(GUEST_MAC)));
        switch.ip(&format!("link set {PORT} up"));
    }

    /// Opens a UDP socket of the partner, for datagrams to and from the guest.
    pub(crate) fn udp(&self, port: u16) -> UdpSocket {
        let socket = self.partner.within(|| UdpSocket::bind((Ipv4Addr::from(PARTNER_IP), port)));
        let socket = socket.expect("the address is this namespace's");
        socket.connect((Ipv4Addr::from(GUEST_IP), UDP_PORT)).expect("there is a route");
        socket.set_nonblocking(true).expect("a socket");
        socket
    }
}

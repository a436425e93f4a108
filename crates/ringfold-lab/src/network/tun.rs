//! A TUN device: the packets that a host sends are read from a descriptor, those it receives are written to it.

#![allow(unsafe_code)] // rustix has no safe call for these two ioctls.

use super::iproute::Namespace;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, write};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const SET_INTERFACE: Opcode = opcode::write::<i32>(b'T', 202);
const SET_CARRIER: Opcode = opcode::write::<i32>(b'T', 226);
/// Packets without Ethernet headers (IFF_TUN), and without a header of TUN (IFF_NO_PI).
const FLAGS: u16 = 0x0001 | 0x1000;
const NAME_BYTES: usize = 16;

/// The kernel's `struct ifreq`, as far as TUNSETIFF reads it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    padding: [u8; 22],
}

#[derive(Debug)]
pub(super) struct Tun(OwnedFd);

impl Tun {
    /// Creates the device in a namespace. It exists as long as the descriptor is open.
    pub fn create(namespace: &Namespace, device: &str) -> Result<Self, String> {
        // A thread of its own, since the namespace is one of the thread.
        let created = std::thread::scope(|scope| {
            scope.spawn(|| Self::create_in(&namespace.path(), device)).join().expect("no panic")
        });
        created.map_err(|error| format!("a TUN device: {error}"))
    }

    fn create_in(namespace: &str, device: &str) -> io::Result<Self> {
        assert!(device.len() < NAME_BYTES, "a short name of a device");
        let namespace = open(namespace, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        // The device belongs to the namespace in which this file is opened.
        let tun = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| io::Error::new(error.kind(), format!("/dev/net/tun: {error}")))?;
        let mut request = InterfaceRequest { name: [0; NAME_BYTES], flags: FLAGS, padding: [0; 22] };
        request.name[..device.len()].copy_from_slice(device.as_bytes());
        // SAFETY: TUNSETIFF reads a `struct ifreq`, which has the size and layout of `InterfaceRequest`.
        unsafe { ioctl(&tun, Setter::<SET_INTERFACE, InterfaceRequest>::new(request)) }?;
        Ok(Self(tun))
    }

    /// Sets whether the host sees its link as up.
    pub fn set_carrier(&self, is_up: bool) -> io::Result<()> {
        // SAFETY: TUNSETCARRIER reads an `int`.
        Ok(unsafe { ioctl(&self.0, Setter::<SET_CARRIER, i32>::new(i32::from(is_up))) }?)
    }

    /// Reads a packet that the host has sent; `None` if there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            match read(&self.0, &mut *buffer) {
                Ok(bytes) => return Some(bytes),
                Err(Errno::INTR) => {}
                // Also while the device is down.
                Err(_) => return None,
            }
        }
    }

    /// Passes a packet to the host. It is lost if the device is down.
    pub fn send(&self, packet: &[u8]) -> bool {
        loop {
            match write(&self.0, packet) {
                Err(Errno::INTR) => {}
                sent => return sent.is_ok(),
            }
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

//! Opening paths that somebody else controls: never outside the directory they belong to, never through a link.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::{Result, at, call};

/// A directory that paths are opened beneath. Whatever those behind the paths do, rename or link while it happens,
/// the opened file lies in this directory and no symbolic or magic link was followed on the way.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Dir {
    /// The trusted starting point; `path` itself is resolved as usual.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(at("open", path))?;
        Ok(Self { fd })
    }

    /// A directory beneath this one.
    pub fn dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { fd: self.openat(path.as_ref(), OFlags::PATH | OFlags::DIRECTORY)? })
    }

    /// A file beneath this directory, for reading; a device, pipe or socket does not block the open.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<std::fs::File> {
        self.openat(path.as_ref(), OFlags::RDONLY | OFlags::NONBLOCK).map(std::fs::File::from)
    }

    /// A file beneath this directory, for reading and writing; a device, pipe or socket does not block the open.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<std::fs::File> {
        self.openat(path.as_ref(), OFlags::RDWR | OFlags::NONBLOCK).map(std::fs::File::from)
    }

    /// A reference to whatever lies at `path`, usable as `/proc/self/fd/N` for the calls that know only paths.
    pub fn reference(&self, path: impl AsRef<Path>) -> Result<OwnedFd> {
        self.openat(path.as_ref(), OFlags::PATH)
    }

    /// Makes a regular file beneath this directory, for reading and writing. One that is there already is an error, and
    /// so is a link.
    pub fn create(&self, path: impl AsRef<Path>, mode: u32) -> Result<std::fs::File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        self.open_with(path.as_ref(), flags, Mode::from_raw_mode(mode)).map(std::fs::File::from)
    }

    /// A directory called `name` in this one, made unless it is there.
    pub fn make_dir(&self, name: &str, mode: u32) -> Result<Self> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.dir(name),
            Err(error) => Err(at("make a directory", Path::new(name))(error)),
        }
    }

    /// Removes the file called `name` from this directory.
    pub fn remove(&self, name: &str) -> Result<()> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()).map_err(at("remove", Path::new(name)))
    }

    /// Names of what lies in this directory, as far as they are text.
    pub fn names(&self) -> Result<Vec<String>> {
        let failed = || call("list a directory");
        let fd = self.openat(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Bytes that somebody without privilege may still write to the file system of this directory.
    pub fn free_bytes(&self) -> Result<u64> {
        let found = rustix::fs::fstatvfs(&self.fd).map_err(call("read the free space of a directory"))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Opens with explicit flags; `CLOEXEC` is added.
    pub fn openat(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        self.open_with(path, flags, Mode::empty())
    }

    fn open_with(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        // The kernel gives up with EAGAIN when a rename races with the check; the answer is to ask again.
        for _ in 0..32 {
            match rustix::fs::openat2(&self.fd, path, flags | OFlags::CLOEXEC, mode, RESOLVE) {
                Err(rustix::io::Errno::AGAIN) => {}
                other => return other.map_err(at("open beneath its directory", path)),
            }
        }
        Err(at("open beneath its directory", path)(rustix::io::Errno::AGAIN))
    }

    /// Connects to the Unix stream socket beneath this directory, at once or not at all: where as many wait as the listener
    /// lets wait, the error's kind is `WouldBlock`. The socket is pinned by descriptor before it is connected to, so a swap
    /// in between cannot redirect the connection. What is returned does not block either.
    pub fn connect(&self, path: impl AsRef<Path>) -> Result<std::os::unix::net::UnixStream> {
        use std::os::fd::AsRawFd;
        let path = path.as_ref();
        let failed = || at("connect to", path);
        let socket = self.reference(path)?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", socket.as_raw_fd())).map_err(failed())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed())?;
        rustix::net::connect(&stream, &address).map_err(failed())?;
        Ok(stream.into())
    }
}

/// Gives the file behind `reference` to the user and the group with the number `owner`. No path is resolved again.
pub fn give(reference: impl AsFd, owner: u32) -> Result<()> {
    let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::fs::chownat(reference, "", Some(user), Some(group), AtFlags::EMPTY_PATH).map_err(call("change an owner"))
}

impl From<OwnedFd> for Dir {
    /// Of a descriptor that somebody passed on; what is not a directory is noticed when something is opened beneath it.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;

    fn scene() -> std::path::PathBuf {
        let dir =
            std::env::temp_dir().join(format!("beneath-{}-{:?}", std::process::id(), std::thread::current().id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("in/sub")).unwrap();
        std::fs::write(dir.join("in/sub/file"), "inside").unwrap();
        std::fs::write(dir.join("secret"), "outside").unwrap();
        symlink("../secret", dir.join("in/up")).unwrap();
        symlink("sub", dir.join("in/link")).unwrap();
        symlink("/proc/self/root/etc/passwd", dir.join("in/magic")).unwrap();
        dir
    }

    #[test]
    fn nothing_outside_is_reached() {
        let dir = scene();
        let beneath = Dir::open(&dir.join("in")).unwrap();
        let mut text = String::new();
        beneath.read("sub/file").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "inside");
        for path in ["../secret", "/etc/passwd", "up", "link/file", "magic", "sub/../../secret"] {
            assert!(beneath.read(path).is_err(), "{path} was opened");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn files_are_made_only_where_nothing_is() {
        let dir = scene();
        let beneath = Dir::open(&dir.join("in")).unwrap();
        beneath.create("sub/new", 0o640).unwrap().write_all(b"x").unwrap();
        assert_eq!(std::fs::read(dir.join("in/sub/new")).unwrap(), b"x");
        symlink("../nothing", dir.join("in/dangling")).unwrap();
        for path in ["sub/file", "up", "dangling", "../beside", "link/new"] {
            assert!(beneath.create(path, 0o640).is_err(), "{path} was made");
        }
        assert!(!dir.join("nothing").exists() && !dir.join("beside").exists());
        assert!(beneath.free_bytes().unwrap() > 0);
        let own = rustix::process::geteuid().as_raw();
        give(beneath.reference("sub/new").unwrap(), own).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn sockets_are_connected_by_descriptor() {
        let dir = scene();
        let listener = std::os::unix::net::UnixListener::bind(dir.join("in/sub/sock")).unwrap();
        let beneath = Dir::open(&dir.join("in")).unwrap();
        let mut client = beneath.connect("sub/sock").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"hi").unwrap();
        drop(client);
        let mut got = String::new();
        server.read_to_string(&mut got).unwrap();
        assert_eq!(got, "hi");
        symlink("sub/sock", dir.join("in/alias")).unwrap();
        assert!(beneath.connect("alias").is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_listener_that_accepts_nobody_holds_nobody_up() {
        let dir = scene();
        let path = SocketAddrUnix::new(dir.join("in/sub/full")).unwrap();
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let beneath = Dir::open(&dir.join("in")).unwrap();
        let waiting: Vec<_> = (0..8).map(|_| beneath.connect("sub/full")).collect();
        let refused = waiting.iter().filter_map(|tried| tried.as_ref().err());
        let kinds: Vec<_> = refused.filter_map(crate::Error::io_kind).collect();
        assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == std::io::ErrorKind::WouldBlock), "{kinds:?}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

//! Imports of a sparse disk over HTTP on loopback, against what a shell makes of the same image.
//!
//! An import is the program that runs in an importer's pod, called as it is called there. Both it and its floors end when
//! the disk is on stable storage.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::routing::get;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::io::AsyncSeekExt as _;
use tokio_util::io::ReaderStream;

use crate::process;
use crate::table::Table;

const MIB: u64 = 1 << 20;
/// How often each is done; the middle one counts.
const ROUNDS: usize = 3;
/// Where the importer's volume is.
const VOLUME: &str = "volume";
/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(2);
/// A stretch of data, and the same with the hole behind it.
const DATA: u64 = 8 * MIB;
const STRIDE: u64 = 24 * MIB;

/// An image on the server, and how a shell makes a disk of it.
struct Image {
    name: &'static str,
    /// What makes it of `disk.raw`.
    make: &'static str,
    /// Its floors: a name and a command, in which `URL`, `IMAGE` and `TO` stand for address, file and disk.
    floors: &'static [(&'static str, &'static str)],
}

const IMAGES: [Image; 4] = [
    Image {
        name: "qcow2",
        make: "qemu-img convert -f raw -O qcow2 disk.raw disk.qcow2",
        floors: &[
            ("curl > file", "curl -sf URL > TO"),
            ("qemu-img convert of a local file", "qemu-img convert -O raw IMAGE TO"),
        ],
    },
    Image {
        name: "raw.gz",
        make: "gzip -1 -c disk.raw > disk.raw.gz",
        floors: &[("curl | gzip -d > file", "curl -sf URL | gzip -dc > TO"), UNPACKED],
    },
    Image {
        name: "raw.zst",
        make: "zstd -q -T2 disk.raw -o disk.raw.zst",
        floors: &[("curl | zstd -d > file", "curl -sf URL | zstd -qdc > TO"), UNPACKED],
    },
    Image {
        name: "raw.xz",
        make: "xz -1 -T2 -k disk.raw",
        floors: &[("curl | xz -d > file", "curl -sf URL | xz -dc > TO"), UNPACKED],
    },
];

/// qemu-img reads no compressed file: it is given what is in it.
const UNPACKED: (&str, &str) = ("qemu-img convert of the unpacked image", "qemu-img convert -f raw -O raw disk.raw TO");

/// Rows for a disk of `size` MiB, a third of it data. The importer is the program below `root`.
pub(crate) fn measure(runtime: &tokio::runtime::Runtime, root: &Path, size: u64) -> Result<Table> {
    let dir = tempfile::Builder::new()
        .prefix("ferrovirt-bench-")
        .tempdir_in("/var/tmp")
        .context("cannot make a directory")?;
    let data = disk_of(dir.path(), size * MIB)?;
    let address = runtime.block_on(serve(dir.path().to_owned()))?;
    let mut table = Table::default();
    for image in IMAGES {
        shell(dir.path(), image.make)?;
        let file = format!("disk.{}", image.name);
        let url = format!("{address}/{file}");
        let (mut ours, mut floors) = (Vec::new(), vec![Vec::new(); image.floors.len()]);
        // In turns, so that what slows the machine down slows all of them.
        for _ in 0..ROUNDS {
            ours.push(imported(root, dir.path(), &url, size)?);
            for (seconds, (_, command)) in floors.iter_mut().zip(image.floors) {
                let command = command.replace("URL", &url).replace("IMAGE", &file).replace("TO", "floor.img");
                let begin = Instant::now();
                shell(dir.path(), &format!("rm -f floor.img; set -o pipefail; {command} && sync floor.img"))?;
                seconds.push(begin.elapsed().as_secs_f64());
            }
        }
        shell(dir.path(), &format!("cmp disk.raw {VOLUME}/disk.img"))?;
        let number = |of: fn(&Import) -> f64| middle(ours.iter().map(of).collect());
        let seconds = number(|import| import.seconds);
        let floors: Vec<_> = floors.into_iter().map(middle).collect();
        let beside = floors.iter().zip(image.floors).map(|(seconds, (name, _))| format!("{name} {seconds:.2}"));
        let rate = size as f64 * MIB as f64 / 1e6 / seconds;
        let part = 100.0 * floors.iter().copied().fold(0.0, f64::max) / seconds;
        table.row(
            format!("import of a {size} MiB disk as {} over HTTP (s; MB/s of disk)", image.name),
            format!("{seconds:.2}; {rate:.0}"),
            format!("{}; {part:.0} % of the slower one's speed, aim 90", beside.collect::<Vec<_>>().join(", ")),
        );
        table.row("  its importer's peak memory (MiB)", format!("{:.0}", number(|import| import.peak)), "aim 64");
        let allocated = std::fs::metadata(dir.path().join(VOLUME).join("disk.img"))?.blocks() * 512;
        table.row(
            "  bytes written / allocated (MiB)",
            format!("{:.0} / {}", number(|import| import.written), allocated / MIB),
            format!("data in the image {}", data / MIB),
        );
        std::fs::remove_file(dir.path().join(file))?;
    }
    Ok(table)
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// What the kernel knows of an importer.
struct Import {
    seconds: f64,
    /// MiB that were resident at most.
    peak: f64,
    /// MiB that it had storage take.
    written: f64,
}

fn imported(root: &Path, dir: &Path, url: &str, size: u64) -> Result<Import> {
    let volume = dir.join(VOLUME);
    // As an importer finds it: nothing is there.
    let _ = std::fs::remove_dir_all(&volume);
    std::fs::create_dir(&volume).context("cannot make a volume")?;
    let said = dir.join("said");
    let mut command = Command::new(root.join("bin/ferrovirt"));
    command.args(["cdi-importer", "--endpoint", url, "--metrics-port=0", "--image-size", &format!("{size}Mi")]);
    command.arg("--data").arg(&volume).arg("--termination-log").arg(&said);
    let begin = Instant::now();
    let mut child = command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let peak = peak(&child)?;
    let seconds = begin.elapsed().as_secs_f64();
    let written = process::written(child.id());
    let ended = child.wait().context("cannot wait for the importer")?;
    let said = std::fs::read_to_string(&said).unwrap_or_default();
    ensure!(ended.success() && said.contains("Import Complete"), "the import of {url} failed: {said}");
    Ok(Import { seconds, peak: peak as f64 / MIB as f64, written: written as f64 / MIB as f64 })
}

/// Waits for the end of a process, which is left to be reaped; the most bytes that were resident until then, as the kernel
/// keeps them for as long as it runs. Its last act is to wait for storage, and nothing is resident then that was not before.
fn peak(child: &Child) -> Result<u64> {
    let id = rustix::process::Pid::from_child(child);
    let mut peak = 0;
    loop {
        peak = peak.max(process::peak(child.id()));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::Pid(id), options).context("cannot wait for the importer")?.is_some() {
            return Ok(peak);
        }
        std::thread::sleep(LOOK);
    }
}

fn shell(dir: &Path, command: &str) -> Result<()> {
    let output = Command::new("bash").args(["-c", command]).current_dir(dir).output()?;
    if !output.status.success() {
        bail!("{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Writes `disk.raw`, with stretches of what is installed on this machine. Returns how much that is.
fn disk_of(dir: &Path, size: u64) -> Result<u64> {
    let mut files = vec![PathBuf::from("/usr/lib"), PathBuf::from("/usr/bin")];
    let mut disk = File::create(dir.join("disk.raw"))?;
    disk.set_len(size)?;
    // A disk begins with a boot sector, not with whatever file comes first.
    let mut sector = vec![0; 512];
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    disk.write_all(&sector)?;
    let (mut at, mut filled, mut total) = (0, 512, 512);
    while let Some(path) = files.pop() {
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.is_dir() {
            files.extend(std::fs::read_dir(path)?.flatten().map(|entry| entry.path()));
            continue;
        }
        if !about.is_file() {
            continue;
        }
        let mut bytes = Vec::new();
        if File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).is_err() {
            continue;
        }
        for part in bytes.chunks(64 << 10) {
            if at + filled + part.len() as u64 > size {
                return Ok(total);
            }
            disk.seek(SeekFrom::Start(at + filled))?;
            disk.write_all(part)?;
            filled += part.len() as u64;
            total += part.len() as u64;
            if filled >= DATA {
                (at, filled) = (at + STRIDE, 0);
            }
        }
    }
    Ok(total)
}

/// Serves the files of a directory, whole and from any byte on. Returns the address.
async fn serve(dir: PathBuf) -> Result<String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let router = Router::new().route("/{name}", get(answer)).with_state(dir);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

async fn answer(
    State(dir): State<PathBuf>,
    axum::extract::Path(name): axum::extract::Path<String>,
    headers: HeaderMap,
) -> Result<Response<Body>, StatusCode> {
    let missing = |_| StatusCode::NOT_FOUND;
    let mut file = tokio::fs::File::open(dir.join(name)).await.map_err(missing)?;
    let size = file.metadata().await.map_err(missing)?.len();
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes="));
    let (first, last) = match range.and_then(|range| range.split_once('-')) {
        Some((first, last)) => (first.parse().unwrap_or(0), last.parse().unwrap_or(size - 1).min(size - 1)),
        None => (0, size - 1),
    };
    if first > last {
        return Err(StatusCode::RANGE_NOT_SATISFIABLE);
    }
    file.seek(SeekFrom::Start(first)).await.map_err(missing)?;
    let length = last + 1 - first;
    let body = ReaderStream::with_capacity(tokio::io::AsyncReadExt::take(file, length), 256 << 10);
    let mut response = Response::builder()
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::ETAG, format!("\"{size}\""))
        .header(header::CONTENT_LENGTH, length);
    if range.is_some() {
        response = response
            .status(StatusCode::PARTIAL_CONTENT)
            .header(header::CONTENT_RANGE, format!("bytes {first}-{last}/{size}"));
    }
    response.body(Body::from_stream(body)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

//! Serving a device: its image, its fronts, its control socket, its end.

mod device;
mod options;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mobifs_base::VirtualNs;
use mobifs_fuse::{MountOptions, Session, SessionError, SessionHandle, SyncFsMode};
use mobifs_host::LineServer;
use parking_lot::{Condvar, Mutex};

use crate::block::{Block, PowerCycle};
use crate::clock::Clock;
use crate::control::{Control, detach_dead_mounts, private_mountpoint, socket_path};
use crate::front::{FILE_NAME, FileFront};
use crate::image::{Image, ImageError, Sidecar};
use crate::journal::JournalWriter;
use crate::model;
use crate::nbd::NbdServer;
use crate::port::Port;

pub(crate) use device::Device;
pub use device::Ready;
use options::system;
pub use options::{SUBTYPE, ServeError, ServeOptions};

/// A device that is being served. Dropping it ends the mount without saving; call
/// [`Served::wait`].
pub struct Served {
    device: Arc<Device>,
    end: EndHandle,
    mount: Option<Mounted>,
    _control: LineServer,
    nbd: Option<NbdServer>,
}

struct Mounted {
    thread: Option<JoinHandle<Result<(), SessionError>>>,
    handle: SessionHandle,
    /// A directory made for this mount.
    own_directory: Option<PathBuf>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Not ended properly: users of the mount get errors.
            if let Err(error) = self.handle.abort() {
                tracing::debug!(%error, "the mount is gone already");
            }
            let _ended = thread.join();
        }
        if let Some(directory) = &self.own_directory {
            let _gone = std::fs::remove_dir(directory);
        }
    }
}

/// Ends a served device from any thread. It does not keep the image locked when the device
/// has ended.
#[derive(Clone)]
pub struct EndHandle {
    device: Weak<Device>,
    mount: Option<SessionHandle>,
    progress: Arc<Progress>,
}

/// How far the end has come.
#[derive(Default)]
struct Progress {
    state: Mutex<ProgressState>,
    changed: Condvar,
}

#[derive(Default)]
struct ProgressState {
    /// [`EndHandle`] was used.
    is_asked: bool,
    /// The kernel has ended the mount.
    is_unmounted: bool,
}

impl EndHandle {
    /// No new users; ends when the last one has left.
    ///
    /// # Errors
    /// If the mount cannot be taken away.
    pub fn end(&self) -> Result<(), ServeError> {
        self.detach_loop();
        if let Some(mount) = &self.mount {
            mount.unmount(true)?;
        }
        self.ask();
        Ok(())
    }

    /// Ends although the device is in use: its users get errors.
    ///
    /// # Errors
    /// If the mount cannot be taken away.
    pub fn end_now(&self) -> Result<(), ServeError> {
        self.detach_loop();
        self.ask();
        if let Some(mount) = &self.mount {
            mount.abort()?;
        }
        Ok(())
    }

    /// Waits until the mount is no longer in use; false if that takes longer than
    /// `patience`.
    pub fn wait_for_users(&self, patience: Duration) -> bool {
        let mut progress = self.progress.state.lock();
        let deadline = Instant::now() + patience;
        while self.mount.is_some() && !progress.is_unmounted {
            if self
                .progress
                .changed
                .wait_until(&mut progress, deadline)
                .timed_out()
            {
                return false;
            }
        }
        true
    }

    fn detach_loop(&self) {
        if let Some(device) = self.device.upgrade() {
            *device.loop_device.lock() = None;
        }
    }

    fn ask(&self) {
        self.progress.state.lock().is_asked = true;
        self.progress.changed.notify_all();
    }
}

impl Served {
    /// Opens the image and serves it. When this returns, the device can be used.
    ///
    /// # Errors
    /// [`ServeError`]; nothing is left behind.
    pub fn start(options: &ServeOptions) -> Result<Self, ServeError> {
        let wants_mount = options.loop_device || options.mountpoint.is_some();
        if !wants_mount && options.nbd.is_none() {
            return Err(ServeError::NoFront);
        }
        let image = Image::open(&options.image, options.size_bytes)?;
        let opened = model::open(&image, options)?;
        let journal = options
            .journal
            .as_deref()
            .map(|path| JournalWriter::create(path, image.size_bytes))
            .transpose()?;
        let sidecar = opened.sidecar;
        image.save(&sidecar)?;
        let clock = Clock::start(options.scale);
        let cycle = PowerCycle(sidecar.about.power_cycles);
        let port = Port::start(opened.device, image.size_bytes, clock, cycle, journal);
        let port = Arc::new(port.map_err(system("start threads"))?);
        let control_path = socket_path(&image.path).map_err(system("make the control socket"))?;
        let device = Arc::new(Device {
            port: Arc::clone(&port),
            ready: Mutex::new(Ready {
                image: image.path.clone(),
                device: opened.name,
                size_bytes: image.size_bytes,
                scale: options.scale.factor(),
                file: None,
                loop_device: None,
                nbd: options.nbd.clone(),
                control: control_path.clone(),
                pid: std::process::id(),
            }),
            image,
            about: sidecar.about,
            loop_device: Mutex::new(None),
            wants_loop: options.loop_device,
        });
        let progress = Arc::new(Progress::default());
        let mount = wants_mount
            .then(|| mount(&device, options.mountpoint.as_deref(), &progress))
            .transpose()?;
        if options.loop_device {
            device.attach_loop().map_err(ServeError::Loop)?;
        }
        let nbd = options.nbd.as_deref().map(|path| start_nbd(path, &device));
        let handler = Control(Arc::downgrade(&device));
        let control = LineServer::start(control_path, Arc::new(handler))
            .map_err(system("make the control socket"))?;
        Ok(Self {
            end: EndHandle {
                device: Arc::downgrade(&device),
                mount: mount.as_ref().map(|mount| mount.handle.clone()),
                progress,
            },
            device,
            mount,
            _control: control,
            nbd: nbd.transpose()?,
        })
    }

    /// Where the device is to be found.
    pub fn ready(&self) -> Ready {
        self.device.ready()
    }

    /// What the clock of the model shows now: that of the times in a journal.
    pub fn now(&self) -> VirtualNs {
        self.device.port.now()
    }

    /// For ending it from another thread.
    pub fn end_handle(&self) -> EndHandle {
        self.end.clone()
    }

    /// Serves until [`EndHandle`] is used or the mount is taken away, then saves.
    ///
    /// # Errors
    /// [`ServeError`]; what could be saved is.
    pub fn wait(mut self) -> Result<(), ServeError> {
        let served = match &mut self.mount {
            Some(mount) => match mount.thread.take().map(JoinHandle::join) {
                Some(Ok(served)) => served,
                Some(Err(_)) => Err(SessionError::Panicked),
                None => Ok(()),
            },
            None => {
                let mut progress = self.end.progress.state.lock();
                while !progress.is_asked {
                    self.end.progress.changed.wait(&mut progress);
                }
                Ok(())
            }
        };
        drop(self.nbd.take());
        *self.device.loop_device.lock() = None;
        save(&self.device)?;
        Ok(served?)
    }
}

fn start_nbd(path: &Path, device: &Arc<Device>) -> Result<NbdServer, ServeError> {
    let front = Arc::clone(&device.port) as Arc<dyn Block>;
    let description = format!("MobiFS flash device model: {}", device.ready().device);
    NbdServer::start(path, front, description).map_err(|source| ServeError::Nbd {
        path: path.to_owned(),
        source,
    })
}

fn mount(
    device: &Arc<Device>,
    mountpoint: Option<&Path>,
    progress: &Arc<Progress>,
) -> Result<Mounted, ServeError> {
    // What this process allocates while it serves must not wait for the device itself.
    if let Err(errno) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%errno, "the kernel does not treat this process as part of the disk");
    }
    if let Err(error) = detach_dead_mounts() {
        tracing::warn!("cannot look for mounts of servers that were killed: {error}");
    }
    let own_directory = match mountpoint {
        Some(_) => None,
        None => Some(make_private_mountpoint(&device.image.path)?),
    };
    let options = MountOptions {
        source_name: device.image.path.to_string_lossy().into_owned(),
        subtype: SUBTYPE.to_owned(),
        sync_fs: SyncFsMode::Off,
        no_dev: true,
        no_suid: true,
        ..MountOptions::default()
    };
    let front = Arc::clone(&device.port) as Arc<dyn Block>;
    let place = mountpoint.or(own_directory.as_deref());
    let session = Session::mount_file(
        Arc::new(FileFront::new(front)),
        FILE_NAME,
        place.unwrap_or(Path::new("")),
        &options,
    );
    let session = session.inspect_err(|_| {
        if let Some(directory) = &own_directory {
            let _gone = std::fs::remove_dir(directory);
        }
    })?;
    let handle = session.handle();
    device.ready.lock().file = Some(session.mountpoint().join(FILE_NAME));
    let progress = Arc::clone(progress);
    let thread = std::thread::Builder::new()
        .name("flash-mount".into())
        .spawn(move || {
            let served = session.run();
            progress.state.lock().is_unmounted = true;
            progress.changed.notify_all();
            served
        })
        .map_err(system("start threads"))?;
    Ok(Mounted {
        thread: Some(thread),
        handle,
        own_directory,
    })
}

fn make_private_mountpoint(image: &Path) -> Result<PathBuf, ServeError> {
    let failed = "make a directory to mount at";
    let path = private_mountpoint(image).map_err(system(failed))?;
    match std::fs::create_dir(&path) {
        Ok(()) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // The image is locked by this process, so the server of that mount has ended.
            while mobifs_fuse::is_mounted(&path, SUBTYPE) {
                mobifs_fuse::unmount(&path, true)?;
            }
            Ok(path)
        }
        Err(error) => Err(system(failed)(error)),
    }
}

/// Brings everything to the image and the file beside it.
fn save(device: &Device) -> Result<(), ServeError> {
    let state = device.port.finish().map_err(|_| ServeError::LastFlush)?;
    let path = &device.image.path;
    device.image.file.sync_all().map_err(ImageError::io(path))?;
    let mut sidecar = Sidecar {
        about: device.about.clone(),
        state,
    };
    sidecar.about.power_cycles = device.port.power_cycle().0;
    sidecar.about.is_clean = true;
    device.image.save(&sidecar)?;
    Ok(())
}

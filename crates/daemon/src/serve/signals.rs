//! Signals from init systems, terminals and users.

use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::commands::Daemon;

/// Keeps the signals that the daemon handles from ending the process; they wait for
/// [`watch`].
pub(super) fn catch() -> io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP])
}

/// Watches for SIGTERM and SIGINT (unmount; the second time: at once) and SIGHUP
/// (load the configuration again) for the rest of the process's life.
pub(super) fn watch(daemon: Arc<Daemon>, mut signals: Signals) -> io::Result<()> {
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut ending = false;
            for signal in &mut signals {
                match signal {
                    SIGHUP => {
                        if let Err(failure) = daemon.reload(None) {
                            tracing::error!(
                                %failure,
                                "cannot reload the configuration; the old one stays in force"
                            );
                        }
                    }
                    _ if ending => daemon.terminate_now(),
                    _ => {
                        ending = true;
                        // In a thread of its own, so that the second signal is handled while the
                        // work for the first goes on.
                        let terminating = Arc::clone(&daemon);
                        let thread = std::thread::Builder::new()
                            .name("terminate".into())
                            .spawn(move || terminating.terminate());
                        if thread.is_err() {
                            daemon.terminate();
                        }
                    }
                }
            }
        })?;
    Ok(())
}

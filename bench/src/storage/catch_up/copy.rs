//! How fast this machine moves bytes from a loopback connection to its disk, when it does nothing else.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

/// Written between two syncs: what a journal's batch is at most.
const SYNC_BYTES: usize = 8 << 20;
const BUFFER_BYTES: usize = 512 << 10;

/// Bytes a second. Leaves nothing behind.
pub(super) fn rate(dir: &Path, bytes: u64) -> io::Result<f64> {
    let mut file = tempfile::tempfile_in(dir)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let sending = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address)?;
        let buffer = vec![b'.'; BUFFER_BYTES];
        let mut left = bytes;
        while left > 0 {
            let next = left.min(BUFFER_BYTES as u64) as usize;
            stream.write_all(&buffer[..next])?;
            left -= next as u64;
        }
        Ok::<_, io::Error>(())
    });
    let (mut stream, _) = listener.accept()?;
    let begun = Instant::now();
    let (mut buffer, mut unsynced, mut received) = (vec![0; BUFFER_BYTES], 0, 0);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        file.write_all(&buffer[..read])?;
        received += read as u64;
        unsynced += read;
        if unsynced >= SYNC_BYTES {
            file.sync_data()?;
            unsynced = 0;
        }
    }
    file.sync_data()?;
    let took = begun.elapsed();
    sending.join().map_err(|_| io::Error::other("the sending thread ended"))??;
    if received != bytes {
        return Err(io::Error::other(format!("{received} of {bytes} bytes came")));
    }
    Ok(bytes as f64 / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        assert!(rate(dir.path(), 3 << 20).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

//! Checkpoints in an object store with the S3 protocol. An object appears completely or not at all, so nothing is renamed: a part is
//! written to a local file, and uploaded when it is complete. This module must not know the content of files.

use crate::error::CheckpointError;
use crate::store::{Staged, Store, new_file};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{
    ListResult, MultipartUpload, ObjectStore as _, ObjectStoreExt as _, PutMode, WriteMultipart,
};
use std::fs::{self, OpenOptions};
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, ErrorKind, Seek as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use tokio::runtime::{Builder, Runtime};

/// Bytes of one piece of a multipart upload, unless a part is too long for pieces of this length.
const PIECE_BYTES: u64 = 8 << 20;
/// The most pieces of one object in S3.
const PIECES_MAX: u64 = 10_000;
/// The most bytes of one piece in S3.
const PIECE_BYTES_MAX: u64 = 5 << 30;
/// Bytes of pieces in flight; a longer piece is in flight alone.
const AHEAD_BYTES: u64 = 4 * PIECE_BYTES;
/// How many names are tried for a local file. Names are random, so one is enough unless somebody guesses them.
const STAGE_TRIES: u32 = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Bucket {
    place: String,
    prefix: Key,
    store: Arc<AmazonS3>,
    /// `None` only while the bucket is dropped.
    runtime: Option<Runtime>,
}

impl Bucket {
    /// The store at `s3://bucket/prefix`. Credentials, region and endpoint come from the variables of the AWS tools.
    pub(crate) fn open(place: &str) -> Result<Self, CheckpointError> {
        Self::build(place, AmazonS3Builder::from_env())
    }

    fn build(place: &str, builder: AmazonS3Builder) -> Result<Self, CheckpointError> {
        let bad = |why: String| CheckpointError::BadPlace { place: place.into(), why };
        let only = "it must be a directory or s3://BUCKET/PATH; set checkpoint.directory to one of these";
        let rest = place.strip_prefix("s3://").ok_or_else(|| bad(only.into()))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(bad(only.into()));
        }
        let prefix = Key::parse(prefix).map_err(|error| bad(error.to_string()))?;
        let store = builder.with_bucket_name(bucket).build().map_err(|error| bad(error.to_string()))?;
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("gradwire-store").enable_all().build();
        let runtime = runtime.map_err(CheckpointError::io("start a thread for", place))?;
        Ok(Self { place: place.into(), prefix, store: Arc::new(store), runtime: Some(runtime) })
    }

    fn key(&self, name: &str, file: &str) -> Key {
        self.prefix.clone().join(name).join(file)
    }

    /// Runs a request on the store's own thread, and waits: callers may be on any thread, even one of another runtime. The client gives
    /// each request a deadline, and repeats failed ones.
    fn wait<T: Send + 'static, W: Future<Output = object_store::Result<T>> + Send + 'static>(
        &self,
        what: &'static str,
        key: Key,
        work: impl FnOnce(Arc<AmazonS3>, Key) -> W,
    ) -> Result<Option<T>, CheckpointError> {
        let failed = |source: io::Error| CheckpointError::io(what, format!("{}: {key}", self.place))(source);
        let work = work(self.store.clone(), key.clone());
        let runtime = self.runtime.as_ref().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        let (done, result) = sync_channel(1);
        runtime.spawn(async move { drop(done.send(work.await)) });
        match result.recv() {
            Ok(Ok(value)) => Ok(Some(value)),
            Ok(Err(object_store::Error::NotFound { .. })) => Ok(None),
            Ok(Err(error)) => Err(failed(io::Error::other(error))),
            Err(_) => Err(failed(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn list(&self, prefix: Key) -> Result<Option<ListResult>, CheckpointError> {
        self.wait(
            "list",
            prefix,
            |store, prefix| async move { store.list_with_delimiter(Some(&prefix)).await },
        )
    }

    fn corrupt(&self, name: &str, file: &str, why: &str) -> CheckpointError {
        CheckpointError::corrupt(&format!("{}/{name}/{file}", self.place), why)
    }

    fn no_bucket(&self) -> CheckpointError {
        CheckpointError::BadPlace {
            place: self.place.clone(),
            why: "no such bucket; create it, or correct checkpoint.directory".into(),
        }
    }
}

/// Creates a file for a part in a directory where other users may write, too. Only this process can open it, and its name is removed at
/// once, so nothing remains of it if the process is killed.
fn stage_in(directory: &Path) -> io::Result<Staged> {
    let mut tries = STAGE_TRIES;
    loop {
        let number = RandomState::new().build_hasher().finish();
        let path = directory.join(format!("gradwire-part-{number:016x}"));
        match new_file(&path, OpenOptions::new().mode(0o600)) {
            Ok(file) => return fs::remove_file(&path).map(|()| Staged::nameless(file, path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && tries > 0 => tries -= 1,
            Err(error) => return Err(error),
        }
    }
}

/// The length of the pieces of a part, such that [`PIECES_MAX`] pieces suffice. `None` if the part is too long for S3.
fn piece_bytes(part_bytes: u64) -> Option<u64> {
    let bytes = part_bytes.div_ceil(PIECES_MAX).max(PIECE_BYTES).next_multiple_of(PIECE_BYTES);
    (bytes <= PIECE_BYTES_MAX).then_some(bytes)
}

/// Uploads a file piece by piece. If that fails, the pieces are removed: the store would keep them, and no listing shows them.
async fn send_pieces(
    upload: Box<dyn MultipartUpload>,
    from: &mut (impl io::Read + Send),
    piece_bytes: u64,
) -> object_store::Result<()> {
    let pieces_ahead = (AHEAD_BYTES / piece_bytes).max(1) as usize;
    let mut upload = WriteMultipart::new_with_chunk_size(upload, piece_bytes as usize);
    let mut piece = vec![0; PIECE_BYTES as usize];
    let wrong = |source: io::Error| object_store::Error::Generic { store: "S3", source: source.into() };
    let failed = loop {
        // A blocking read: the file is local and was just written, and the thread has nothing else to do.
        match from.read(&mut piece) {
            // If `finish` fails, it removes the pieces itself.
            Ok(0) => return upload.finish().await.map(drop),
            Ok(count) => match upload.wait_for_capacity(pieces_ahead).await {
                Ok(()) => upload.write(&piece[..count]),
                Err(error) => break error,
            },
            Err(error) => break wrong(error),
        }
    };
    let Err(error) = upload.abort().await else { return Err(failed) };
    let both = format!(
        "{failed}; the pieces that were sent could not be removed ({error}) and take space in the store: abort the incomplete multipart upload there"
    );
    Err(wrong(io::Error::other(both)))
}

impl Drop for Bucket {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Store for Bucket {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let prefixes = self.list(self.prefix.clone())?.map_or_else(Vec::new, |listed| listed.common_prefixes);
        let mut names: Vec<String> =
            prefixes.iter().filter_map(|path| path.filename()).map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn files(&self, name: &str) -> Result<Vec<(String, u64)>, CheckpointError> {
        let listed = self.list(self.prefix.clone().join(name))?;
        let objects = listed.map_or_else(Vec::new, |listed| listed.objects);
        let file = |meta: &object_store::ObjectMeta| Some((meta.location.filename()?.to_owned(), meta.size));
        let mut files: Vec<(String, u64)> = objects.iter().filter_map(file).collect();
        files.sort_unstable();
        Ok(files)
    }

    fn bytes(&self, name: &str, file: &str) -> Result<Option<u64>, CheckpointError> {
        let key = self.key(name, file);
        let found = self.wait("get the size of", key, |store, key| async move { store.head(&key).await })?;
        Ok(found.map(|meta| meta.size))
    }

    fn read(&self, name: &str, file: &str, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        if into.is_empty() {
            return Ok(());
        }
        let (key, range) = (self.key(name, file), offset..offset + into.len() as u64);
        let found = self.wait("read", key, |store, key| async move { store.get_range(&key, range).await })?;
        let found = found.ok_or_else(|| self.corrupt(name, file, "it is missing"))?;
        if found.len() != into.len() {
            return Err(self.corrupt(name, file, "it is too short"));
        }
        into.copy_from_slice(&found);
        Ok(())
    }

    fn stage(&self, _: &str, _: &str) -> Result<Staged, CheckpointError> {
        let directory = std::env::temp_dir();
        stage_in(&directory).map_err(CheckpointError::io("create a file in", directory.display().to_string()))
    }

    fn put(&self, name: &str, file: &str, mut staged: Staged) -> Result<(), CheckpointError> {
        let bytes = staged.file.rewind().and_then(|()| staged.file.metadata()).map(|about| about.len());
        let bytes = bytes.map_err(CheckpointError::io("read", staged.path.display().to_string()))?;
        let piece_bytes = piece_bytes(bytes).ok_or_else(|| CheckpointError::BadPlace {
            place: self.place.clone(),
            why: format!(
                "a part has {bytes} bytes, too many for one object; raise cluster.servers or cluster.lanes"
            ),
        })?;
        let sent = self.wait("send", self.key(name, file), |store, key| async move {
            let upload = store.put_multipart(&key).await?;
            send_pieces(upload, &mut staged.file, piece_bytes).await
        })?;
        sent.ok_or_else(|| self.no_bucket())
    }

    fn put_bytes(&self, name: &str, file: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let (key, bytes) = (self.key(name, file), bytes.to_vec());
        let put = self.wait("send", key, |store, key| async move { store.put(&key, bytes.into()).await })?;
        put.map(drop).ok_or_else(|| self.no_bucket())
    }

    fn put_new(&self, name: &str, file: &str, bytes: &[u8]) -> Result<bool, CheckpointError> {
        let (key, bytes) = (self.key(name, file), bytes.to_vec());
        let put = self.wait("make", key, |store, key| async move {
            match store.put_opts(&key, bytes.into(), PutMode::Create.into()).await {
                Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                put => put.map(|_| true),
            }
        })?;
        put.ok_or_else(|| self.no_bucket())
    }

    fn remove(&self, name: &str, file: &str) -> Result<(), CheckpointError> {
        let key = self.key(name, file);
        self.wait("remove", key, |store, key| async move { store.delete(&key).await }).map(drop)
    }

    fn forget(&self, name: &str) -> Result<bool, CheckpointError> {
        // Object stores have no directories: without objects the name does not exist.
        Ok(self.files(name)?.is_empty())
    }
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;

//! A store that breaks the promises of object stores.

use std::sync::Arc;

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use pagefold_backup::{Error, InitOptions, Repository, Seen, Store};

use super::bench::{Bench, create};

/// A store that ignores conditions, and one that loses the response of every create.
#[derive(Debug)]
struct Odd {
    inner: InMemory,
    ignores: bool,
}

impl std::fmt::Display for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("odd")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Odd {
    async fn put_opts(
        &self,
        at: &Path,
        bytes: PutPayload,
        mut options: PutOptions,
    ) -> StoreResult<PutResult> {
        let is_create = options.mode == PutMode::Create;
        if is_create && self.ignores {
            options.mode = PutMode::Overwrite;
        }
        let put = self.inner.put_opts(at, bytes, options).await?;
        if is_create && !self.ignores {
            let source = "the response was lost, and the second attempt met the first".into();
            return Err(object_store::Error::AlreadyExists { path: at.to_string(), source });
        }
        Ok(put)
    }
    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }
    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.inner.get_opts(at, options).await
    }
    fn delete_stream(
        &self,
        all: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(all)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[test]
fn stores_that_break_promises_are_refused_and_lost_responses_are_no_loss() {
    let odd = |ignores| Store::new(Arc::new(Odd { inner: InMemory::new(), ignores }), "").unwrap();
    let refused = Repository::init(odd(true), Seen::default(), &InitOptions::default()).err().unwrap();
    assert!(matches!(refused, Error::UnsafeStore(_)), "{refused}");
    let vouched = InitOptions { single_writer: true, ..InitOptions::default() };
    Repository::init(odd(true), Seen::default(), &vouched).unwrap();
    let repository = Repository::init(odd(false), Seen::default(), &InitOptions::default()).unwrap();
    let bench = Bench::new(10);
    let one = bench.snapshot("one");
    create(&repository, &bench.stream(&one, None)).unwrap();
    assert_eq!(repository.backups().unwrap().len(), 1);
    assert_eq!(repository.check().unwrap().commits, 2);
}

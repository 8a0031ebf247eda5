//! Names of places where a repository can be.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::bucket::{Bucket, Service};
use crate::error::{Error, Result};
use crate::remote::Host;

/// Longest time that a request may take: a pack over a slow line.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest time for which a request that fails is tried again, with growing pauses.
pub(crate) const RETRY_TIMEOUT: Duration = Duration::from_secs(180);

/// Bounds of waiting for requests to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Longest time that a request may take.
    pub request: Duration,
    /// Longest time for which a request that fails is tried again.
    pub retry: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { request: REQUEST_TIMEOUT, retry: RETRY_TIMEOUT }
    }
}

/// The place of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory.
    Directory(PathBuf),
    /// A directory on another host.
    Host(Host),
    /// A bucket of an object store.
    Bucket(Bucket),
}

impl Location {
    /// Parses a directory, `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, or
    /// `ssh://[USER@]HOST[:PORT]/DIRECTORY`; `remote_command` is Pagefold's name on that host, in words of a shell.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other URLs, and for an endpoint or region where there is none.
    pub fn parse(
        text: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
        remote_command: Option<&str>,
    ) -> Result<Self> {
        if let Some(service) = Service::of(text) {
            return Bucket::parse(service, text, endpoint, region).map(Self::Bucket);
        }
        let host = text.strip_prefix("ssh://");
        if host.is_none() && text.contains("://") {
            return Err(Error::Invalid(format!(
                "'{text}' is of a kind that is not known: a repository is a directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://HOST/DIRECTORY"
            )));
        }
        if text.is_empty() {
            return Err(Error::Invalid("a repository has a name".into()));
        }
        if endpoint.is_some() || region.is_some() {
            return Err(Error::Invalid(format!(
                "'{text}' is a directory: it has neither endpoint nor region, as buckets have"
            )));
        }
        match host {
            Some(host) => Host::parse(host, remote_command).map(Self::Host),
            None => Ok(Self::Directory(text.into())),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Host(host) => host.fmt(f),
            Self::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, endpoint: Option<&str>, region: Option<&str>) -> Result<Location> {
        Location::parse(text, endpoint, region, None)
    }

    #[test]
    fn names_of_places_are_told_apart() {
        for (text, service, name, prefix) in [
            ("s3://b", Service::S3, "b", ""),
            ("s3://b/some/where/", Service::S3, "b", "some/where"),
            ("gs://b/tank", Service::Gcs, "b", "tank"),
            ("az://c/tank", Service::Azure, "c", "tank"),
        ] {
            let Ok(Location::Bucket(bucket)) = parse(text, None, None) else { panic!("{text}") };
            let found = (bucket.service, bucket.name.as_str(), bucket.prefix.as_str());
            assert_eq!(found, (service, name, prefix));
            assert_eq!(bucket.to_string(), text.trim_end_matches('/'));
        }
        assert!(matches!(parse("ssh://host/dir", None, None), Ok(Location::Host(_))));
        assert!(matches!(parse("s3/dir", None, None), Ok(Location::Directory(_))));
    }

    #[test]
    fn what_a_place_does_not_have_is_refused() {
        let url = Some("http://h:1");
        assert!(parse("gs://b", url, None).is_ok());
        assert!(parse("s3://b", url, Some("r")).is_ok());
        for (text, endpoint, region, why) in [
            ("s3://b", Some("h:1"), None, "is no URL"),
            ("gs://b", None, Some("r"), "has no region"),
            ("az://c/x", None, Some("r"), "has no region"),
            ("dir", url, None, "neither endpoint nor region"),
            ("ssh://h/dir", None, Some("r"), "neither endpoint nor region"),
            ("", None, None, "has a name"),
            ("gs:///x", None, None, "gs://BUCKET/PREFIX is wanted"),
            ("az://", None, None, "az://CONTAINER/PREFIX is wanted"),
            ("abfs://c/x", None, None, "az://CONTAINER/PREFIX"),
        ] {
            let refused = parse(text, endpoint, region).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}

//! Buckets of object stores: Amazon S3 and stores like it, Google Cloud Storage, Azure Blob Storage.

use std::fmt;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use crate::error::{Error, Result};
use crate::location::Patience;

/// Protocols of object stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Amazon S3, and the many stores that are used in the same way.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl Service {
    const ALL: [Self; 3] = [Self::S3, Self::Gcs, Self::Azure];

    const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3://",
            Self::Gcs => "gs://",
            Self::Azure => "az://",
        }
    }

    /// Returns the service that a URL of a repository names.
    pub fn of(repository: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| repository.starts_with(service.scheme()))
    }

    /// Returns the prefix of the names of variables that give access.
    const fn prefix(self) -> &'static str {
        match self {
            Self::S3 => "AWS_",
            Self::Gcs => "GOOGLE_",
            Self::Azure => "AZURE_",
        }
    }

    /// Returns the settings of access that the environment has. An empty variable is none.
    pub fn settings(self) -> Vec<(String, String)> {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let is_ours = |(name, value): &(String, String)| name.starts_with(self.prefix()) && !value.is_empty();
        std::env::vars_os().filter_map(text).filter(is_ours).collect()
    }

    /// Returns one of [`Service::settings`].
    pub fn setting(self, name: &str) -> Option<String> {
        self.settings().into_iter().find(|(of, _)| of == name).map(|(_, value)| value)
    }

    /// Returns the name of the variable that has the URL of the store.
    pub const fn endpoint_variable(self) -> &'static str {
        match self {
            Self::S3 => "AWS_ENDPOINT_URL",
            Self::Gcs => "GOOGLE_BASE_URL",
            Self::Azure => "AZURE_STORAGE_ENDPOINT",
        }
    }

    /// Returns the name of the variable that has the region, if there are regions.
    pub const fn region_variable(self) -> Option<&'static str> {
        match self {
            Self::S3 => Some("AWS_REGION"),
            Self::Gcs | Self::Azure => None,
        }
    }

    /// Returns the variable of this environment that tells who one is, if one does: a machine may have a role by which
    /// it may use the bucket. An empty variable tells nothing.
    pub fn credentials(self) -> Option<&'static str> {
        let variables: &[&str] = match self {
            Self::S3 => &["AWS_ACCESS_KEY_ID"],
            Self::Gcs => &[
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_BEARER_TOKEN",
            ],
            // Without the account's name no container is found.
            Self::Azure => &["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"],
        };
        variables.iter().find(|name| self.setting(name).is_some()).copied()
    }
}

/// A bucket, which Azure calls container, and a path in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Protocol of the store.
    pub service: Service,
    /// Name of the bucket.
    pub name: String,
    /// Path in the bucket; empty for all of it.
    pub prefix: String,
    /// URL of the store, if it is neither the provider's own nor the one of the environment.
    pub endpoint: Option<String>,
    /// Region of the store, if it is not the one of the environment.
    pub region: Option<String>,
}

impl Bucket {
    pub(crate) fn parse(
        service: Service,
        text: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
    ) -> Result<Self> {
        let rest = text.strip_prefix(service.scheme()).unwrap_or_default();
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if name.is_empty() {
            let bucket = if service == Service::Azure { "CONTAINER" } else { "BUCKET" };
            return Err(Error::Invalid(format!(
                "'{text}' names no {}: {}{bucket}/PREFIX is wanted",
                bucket.to_lowercase(),
                service.scheme()
            )));
        }
        if region.is_some() && service.region_variable().is_none() {
            return Err(Error::Invalid(format!("'{text}' has no region: its name is enough to find it")));
        }
        let is_url = |url: &str| url.starts_with("https://") || url.starts_with("http://");
        if let Some(endpoint) = endpoint.filter(|endpoint| !is_url(endpoint)) {
            return Err(Error::Invalid(format!(
                "the endpoint '{endpoint}' of '{text}' is no URL: https://HOST[:PORT] is wanted"
            )));
        }
        Ok(Self {
            service,
            name: name.into(),
            prefix: prefix.trim_matches('/').into(),
            endpoint: endpoint.map(Into::into),
            region: region.map(Into::into),
        })
    }

    /// Makes requests possible; makes none.
    pub(crate) fn open(
        &self,
        settings: &[(String, String)],
        patience: Patience,
    ) -> Result<Arc<dyn ObjectStore>> {
        // The program may have installed another provider, which is used then.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let variable = self.service.endpoint_variable();
        let of_settings = settings.iter().find(|(name, _)| name == variable).map(|(_, value)| value);
        let endpoint = self.endpoint.as_ref().or(of_settings).map(|url| url.trim_end_matches('/'));
        let is_plain = endpoint.is_some_and(|url| url.starts_with("http://"));
        let options = ClientOptions::new().with_timeout(patience.request).with_allow_http(is_plain);
        // The time alone says when a request is given up: pauses between retries are drawn, and may be short.
        let retry =
            RetryConfig { retry_timeout: patience.retry, max_retries: usize::MAX, ..RetryConfig::default() };
        // Names that are unknown to the library are somebody else's, as in its own reading of the environment.
        let settings = settings.iter().map(|(name, value)| (known(name).to_ascii_lowercase(), value));
        macro_rules! configured {
            ($builder:expr) => {{
                let mut builder = $builder;
                for (name, value) in settings {
                    if let Ok(key) = name.parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                builder.with_client_options(options).with_retry(retry)
            }};
        }
        let store: object_store::Result<Arc<dyn ObjectStore>> = match self.service {
            Service::S3 => {
                let mut builder = configured!(AmazonS3Builder::new()).with_bucket_name(&self.name);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint);
                }
                if let Some(region) = &self.region {
                    builder = builder.with_region(region);
                }
                let builder = builder.with_checksum_algorithm(object_store::aws::Checksum::SHA256);
                builder.build().map(|store| Arc::new(store) as _)
            }
            Service::Gcs => {
                let mut builder = configured!(GoogleCloudStorageBuilder::new()).with_bucket_name(&self.name);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_base_url(endpoint);
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
            Service::Azure => {
                let mut builder = configured!(MicrosoftAzureBuilder::new()).with_container_name(&self.name);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint.to_owned());
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
        };
        store.map_err(|error| Error::Invalid(format!("the store {self} cannot be used: {error}")))
    }
}

/// Returns the name by which the library knows a variable: Azure's own command line has other names for two.
fn known(name: &str) -> &str {
    match name {
        "AZURE_STORAGE_ACCOUNT" => "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_KEY" => "AZURE_STORAGE_ACCOUNT_KEY",
        name => name,
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.service.scheme(), self.name)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

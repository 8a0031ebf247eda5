//! The control socket of a mounted pool's server: one request, one reply, as JSON behind a length.
//!
//! A frame is a length in bytes (32 bits, little endian) and that number of bytes of JSON. Only root and the user whom
//! the server belongs to are answered. No input is trusted: lengths are bounded, unknown requests and fields are
//! refused, slow senders are dropped. A stream of any length follows its reply or request in pieces (`pieces`).

mod activity;
mod client;
mod datasets;
mod descriptor;
mod device_figures;
mod figures;
mod frame;
mod model;
mod pace;
mod pieces;
mod places;
mod server;

pub use activity::{
    Activity, Counter, DeviceActivity, LatencyFigures, LengthFigures, RequestFigures, RewriteFigures,
};
pub use client::Client;
pub use datasets::{
    DatasetFigures, Difference, Moving, Operation, OperationResult, PartialFigures, Rebased, Sendable,
    Transferred,
};
pub(crate) use descriptor::receive_descriptor;
pub use device_figures::{DeviceErrors, DeviceFigures, LogDeviceFigures, ReadSpeed, SpareFigures};
pub use figures::{
    BalanceFigures, CacheFigures, CodecFigures, CodecShare, ConfinementFigures, ErrorFigures, Event,
    FileSurvey, FileUsage, FillFigures, ForecastFigures, KindShare, MemoryFigures, ModelFigures,
    MountFigures, MoveFigures, PoolFigures, PropertyValue, QuotaFigures, RecompressFigures, RemovalFigures,
    ScrubFigures, SnapshotFigures, StruckFigures, TakeoverFigures, ThinFigures, TrimFigures, ValueSource,
};
pub use frame::{REPLY_BYTES_MAX, write as write_frame};
pub use model::{DeviceChange, DevicePlace, FileRewrite, Reply, Request, UnmountMode};
pub use pace::{WorkPace, per_second, seconds};
pub use pieces::{PieceReader, PieceWriter};
pub(crate) use server::{Handler, Listener, lock_name};

#[cfg(test)]
mod tests;

//! The tests of the operations, one file a subject, in one binary: linking one takes longer than most tests.

mod arithmetic;
mod bytes;
mod compute;
mod crc;
mod crc64;
mod delta;
mod dif;
mod exact;
mod oracle;

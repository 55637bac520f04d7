//! A tensor's codec, and what a worker does with it: typed, and checked when the tensor is declared.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// How contributions to a tensor are encoded. A codec's position in this list is its wire id and never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Codec {
    /// Not encoded.
    #[default]
    Plain,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// Signs, and one scale per chunk.
    OneBit,
    /// Plus, minus or nothing.
    TwoBit {
        /// The step. Smaller sums wait until they reach it.
        threshold: f32,
    },
    /// The largest magnitudes.
    TopK {
        /// The share of a chunk's elements, above 0 and at most 0.5.
        share: f32,
    },
    /// Randomly selected elements.
    RandomK {
        /// The share of a chunk's elements, above 0 and at most 0.5.
        share: f32,
    },
    /// Magnitudes in steps, randomly rounded.
    Dither {
        /// Bits per element: 2, 4 or 8.
        bits: u8,
    },
}

/// Why a codec cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CodecError {
    /// Unknown name.
    #[error(
        "unknown codec {given:?}: use plain, f16, bf16, onebit, twobit:THRESHOLD, topk:SHARE, randomk:SHARE or dither:BITS"
    )]
    Unknown {
        /// The given text.
        given: String,
    },
    /// A number is missing, superfluous, or invalid.
    #[error("invalid codec {given:?}: write {form}")]
    Argument {
        /// The given text.
        given: String,
        /// The correct form.
        form: &'static str,
    },
    /// A number is out of range.
    #[error("codec {codec}: {name} = {value} is out of range: it must be {range}")]
    OutOfRange {
        /// The codec.
        codec: &'static str,
        /// The number.
        name: &'static str,
        /// The given text.
        value: f32,
        /// The allowed values.
        range: &'static str,
    },
    /// Error feedback or momentum without an encoding.
    #[error(
        "codec plain takes no error feedback and no momentum, because it is lossless: turn them off, or use another codec"
    )]
    Nothing,
}

impl Codec {
    /// Its number in block tables.
    #[must_use]
    pub const fn wire_id(&self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::F16 => 1,
            Self::Bf16 => 2,
            Self::OneBit => 3,
            Self::TwoBit { .. } => 4,
            Self::TopK { .. } => 5,
            Self::RandomK { .. } => 6,
            Self::Dither { .. } => 7,
        }
    }

    /// Its name, without numbers.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::OneBit => "onebit",
            Self::TwoBit { .. } => "twobit",
            Self::TopK { .. } => "topk",
            Self::RandomK { .. } => "randomk",
            Self::Dither { .. } => "dither",
        }
    }

    /// Whether contributions are sent unencoded.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// Rejects numbers out of range.
    pub fn validate(&self) -> Result<(), CodecError> {
        let codec = self.name();
        let refuse = |name, value, range| Err(CodecError::OutOfRange { codec, name, value, range });
        match *self {
            Self::TwoBit { threshold } if !(threshold.is_normal() && threshold > 0.0) => {
                refuse("threshold", threshold, "a number above 0")
            }
            Self::TopK { share } | Self::RandomK { share } if !(share > 0.0 && share <= 0.5) => {
                refuse("share", share, "above 0 and at most 0.5")
            }
            Self::Dither { bits } if !matches!(bits, 2 | 4 | 8) => {
                refuse("bits", f32::from(bits), "2, 4 or 8")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::TwoBit { threshold: number }
            | Self::TopK { share: number }
            | Self::RandomK { share: number } => {
                write!(f, "{name}:{number}")
            }
            Self::Dither { bits } => write!(f, "{name}:{bits}"),
            _ => f.write_str(name),
        }
    }
}

impl FromStr for Codec {
    type Err = CodecError;

    fn from_str(given: &str) -> Result<Self, CodecError> {
        fn number<T: FromStr>(given: &str, text: Option<&str>, form: &'static str) -> Result<T, CodecError> {
            let wrong = || CodecError::Argument { given: given.to_owned(), form };
            text.and_then(|text| text.parse().ok()).ok_or_else(wrong)
        }
        let (name, text) = given.split_once(':').map_or((given, None), |(name, text)| (name, Some(text)));
        let bare = |codec, form| match text {
            None => Ok(codec),
            Some(_) => Err(CodecError::Argument { given: given.to_owned(), form }),
        };
        let codec = match name {
            "plain" => bare(Self::Plain, "plain"),
            "f16" => bare(Self::F16, "f16"),
            "bf16" => bare(Self::Bf16, "bf16"),
            "onebit" => bare(Self::OneBit, "onebit"),
            "twobit" => number(given, text, "twobit:THRESHOLD, such as twobit:0.01")
                .map(|threshold| Self::TwoBit { threshold }),
            "topk" => number(given, text, "topk:SHARE, such as topk:0.01").map(|share| Self::TopK { share }),
            "randomk" => {
                number(given, text, "randomk:SHARE, such as randomk:0.1").map(|share| Self::RandomK { share })
            }
            "dither" => {
                number(given, text, "dither:BITS, such as dither:4").map(|bits| Self::Dither { bits })
            }
            _ => Err(CodecError::Unknown { given: given.to_owned() }),
        }?;
        codec.validate().map(|()| codec)
    }
}

/// What a worker does to gradients before they are sent. It is the same for all workers of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compression {
    /// The encoding.
    pub codec: Codec,
    /// Error feedback: adds what the encoding of this gradient left out to the next one. Nothing is lost, but some of
    /// it is late.
    pub feedback: bool,
    /// Momentum before the encoding, from 0 to below 1: m = momentum * m + g, and g + momentum * m is encoded
    /// (Nesterov's, as in BytePS). With a rule that has momentum, it would be applied twice.
    pub momentum: f32,
}

impl Compression {
    /// A codec without momentum, and with error feedback unless it is lossless.
    #[must_use]
    pub const fn of(codec: Codec) -> Self {
        Self { codec, feedback: !codec.is_plain(), momentum: 0.0 }
    }

    /// Rejects numbers out of range.
    pub fn validate(&self) -> Result<(), CodecError> {
        self.codec.validate()?;
        if self.codec.is_plain() && (self.feedback || self.momentum != 0.0) {
            return Err(CodecError::Nothing);
        }
        if !(0.0..1.0).contains(&self.momentum) {
            let (codec, name, value) = (self.codec.name(), "momentum", self.momentum);
            return Err(CodecError::OutOfRange { codec, name, value, range: "from 0 to below 1" });
        }
        Ok(())
    }
}

//! Short names that are kept inline, so that what has them can be copied. It must not know what is named.

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use thiserror::Error;

/// A text that is no [`ShortName`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not a name here: it must have 1 to {most} characters, all of them a to z, 0 to 9 or _")]
pub struct NameError {
    /// The text, or its beginning.
    text: String,
    /// The most characters.
    most: usize,
}

/// A name of 1 to `N` characters: a to z, 0 to 9 and `_`. The default is no name, and equal to no valid one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortName<const N: usize>([u8; N]);

impl<const N: usize> ShortName<N> {
    /// Checks a name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let mut name = Self::default();
        match name.0.get_mut(..text.len()).filter(|_| !text.is_empty() && text.bytes().all(is_plain)) {
            Some(bytes) => bytes.copy_from_slice(text.as_bytes()),
            // What a peer sends may be long.
            None => return Err(NameError { text: text.chars().take(2 * N).collect(), most: N }),
        }
        Ok(name)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(N);
        // All characters are ASCII.
        str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

impl<const N: usize> Default for ShortName<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for ShortName<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> fmt::Display for ShortName<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<const N: usize> Serialize for ShortName<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, const N: usize> Deserialize<'de> for ShortName<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text<const N: usize>;

        impl<const N: usize> Visitor<'_> for Text<N> {
            type Value = ShortName<N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a name of at most {N} characters")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ShortName<N>, E> {
                ShortName::new(text).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_bounds_and_plain_characters() {
        for text in ["a", "dc_asgd", "x2345678"] {
            let name = ShortName::<8>::new(text).unwrap();
            assert_eq!((name.as_str(), name.to_string()), (text, text.to_owned()));
            let json = serde_json::to_string(&name).unwrap();
            assert_eq!(serde_json::from_str::<ShortName<8>>(&json).unwrap(), name);
        }
        for text in ["", "x23456789", "Upper", "a-b", "a b", "ä", "a\0"] {
            let error = ShortName::<8>::new(text).unwrap_err().to_string();
            assert!(error.contains("1 to 8 characters"), "{error}");
            assert!(serde_json::from_str::<ShortName<8>>(&serde_json::to_string(text).unwrap()).is_err());
        }
        let long = ShortName::<8>::new(&"x".repeat(1000)).unwrap_err();
        assert!(long.to_string().len() < 150, "what a peer sends is not repeated at length: {long}");
    }
}

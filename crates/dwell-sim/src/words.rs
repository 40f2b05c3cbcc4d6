// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of parameters as words, read and shown.

/// Something a parameter can be.
pub(crate) trait Value: Sized {
    /// From text; the error says what it must be.
    fn parse(text: &str) -> Result<Self, String>;
    /// As text that `parse` takes.
    fn show(&self) -> String;
}

impl Value for u64 {
    fn parse(text: &str) -> Result<Self, String> {
        let (digits, factor) = match text.as_bytes().last() {
            Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
            Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
            Some(b'G' | b'g') => (&text[..text.len() - 1], 1 << 30),
            _ => (text, 1),
        };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor))
            .ok_or_else(|| "must be a whole number, optionally with K, M or G".into())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for f64 {
    fn parse(text: &str) -> Result<Self, String> {
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| "must be a number".into())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "must be true or false".into())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $word:literal),* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[doc = concat!("`", $word, "`.")] #[serde(rename = $word)] $variant,)*
        }

        impl $crate::words::Value for $name {
            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($name::$variant),)*
                    _ => Err(format!("must be one of: {}", [$($word),*].join(", "))),
                }
            }
            fn show(&self) -> String {
                match self { $($name::$variant => $word.into(),)* }
            }
        }
    };
}
pub(crate) use words;

//! Fields of a configuration, each refused by its name when it is of another kind. Pure.

use serde_json::Value;

use crate::error::Error;

/// The fields of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a Value);

impl<'a> Fields<'a> {
    fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// True or false; `otherwise` when it is not there.
    pub(crate) fn flag(self, name: &str, otherwise: bool) -> Result<bool, Error> {
        self.optional_flag(name).map(|flag| flag.unwrap_or(otherwise))
    }

    /// True, false, or nothing said.
    pub(crate) fn optional_flag(self, name: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| Error::field(name, value, "set true or false"))
    }

    /// A text; none when it is empty.
    pub(crate) fn text(self, name: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.as_str().ok_or_else(|| Error::field(name, value, "write a text"))?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// A number of this range; none when it is not there.
    pub(crate) fn number(self, name: &str, least: u32, most: u32) -> Result<Option<u32>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| Error::field(name, value, format!("set a number from {least} to {most}")))
    }

    /// The largest packet; 0, as runtimes write it, leaves it to the kernel.
    pub(crate) fn mtu(self) -> Result<Option<u32>, Error> {
        Ok(self.number("mtu", 0, 65535)?.filter(|mtu| *mtu > 0))
    }
}

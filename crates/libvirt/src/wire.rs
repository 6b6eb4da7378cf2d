//! Procedures of libvirt's remote protocol by number, and the structures they share.
//!
//! The numbers never change: an older client has to be understood by a newer daemon (libvirt.org, "RPC protocol & APIs").

use crate::xdr::{Malformed, Reader, Writer};
use crate::{Error, Parameter, Value};

/// Of the program `packet::REMOTE`.
pub(crate) mod remote {
    pub(crate) const CONNECT_OPEN: u32 = 1;
    pub(crate) const CONNECT_GET_VERSION: u32 = 4;
    pub(crate) const CONNECT_GET_CAPABILITIES: u32 = 7;
    pub(crate) const DOMAIN_CREATE_XML: u32 = 10;
    pub(crate) const DOMAIN_GET_XML_DESC: u32 = 14;
    pub(crate) const DOMAIN_GET_INFO: u32 = 16;
    pub(crate) const DOMAIN_LOOKUP_BY_NAME: u32 = 23;
    pub(crate) const DOMAIN_REBOOT: u32 = 27;
    pub(crate) const DOMAIN_RESUME: u32 = 28;
    pub(crate) const DOMAIN_SUSPEND: u32 = 34;
    pub(crate) const AUTH_LIST: u32 = 66;
    pub(crate) const CONNECT_GET_LIB_VERSION: u32 = 157;
    pub(crate) const DOMAIN_ATTACH_DEVICE_FLAGS: u32 = 160;
    pub(crate) const DOMAIN_DETACH_DEVICE_FLAGS: u32 = 161;
    pub(crate) const DOMAIN_ABORT_JOB: u32 = 164;
    pub(crate) const DOMAIN_MIGRATE_SET_MAX_DOWNTIME: u32 = 166;
    pub(crate) const DOMAIN_UPDATE_DEVICE_FLAGS: u32 = 174;
    pub(crate) const DOMAIN_GET_BLOCK_INFO: u32 = 194;
    pub(crate) const DOMAIN_CREATE_WITH_FLAGS: u32 = 196;
    pub(crate) const DOMAIN_SET_VCPUS_FLAGS: u32 = 199;
    pub(crate) const DOMAIN_SCREENSHOT: u32 = 211;
    pub(crate) const DOMAIN_GET_STATE: u32 = 212;
    pub(crate) const DOMAIN_UNDEFINE_FLAGS: u32 = 231;
    pub(crate) const DOMAIN_DESTROY_FLAGS: u32 = 234;
    pub(crate) const DOMAIN_RESET: u32 = 245;
    pub(crate) const DOMAIN_BLOCK_RESIZE: u32 = 251;
    pub(crate) const DOMAIN_SHUTDOWN_FLAGS: u32 = 258;
    pub(crate) const DOMAIN_GET_JOB_STATS: u32 = 298;
    pub(crate) const DOMAIN_MIGRATE_PERFORM3_PARAMS: u32 = 305;
    pub(crate) const CONNECT_DOMAIN_EVENT_CALLBACK_REGISTER_ANY: u32 = 316;
    pub(crate) const DOMAIN_CORE_DUMP_WITH_FORMAT: u32 = 334;
    pub(crate) const DOMAIN_FSFREEZE: u32 = 335;
    pub(crate) const DOMAIN_FSTHAW: u32 = 336;
    pub(crate) const DOMAIN_SET_TIME: u32 = 338;
    pub(crate) const CONNECT_GET_DOMAIN_CAPABILITIES: u32 = 342;
    pub(crate) const CONNECT_GET_ALL_DOMAIN_STATS: u32 = 344;
    pub(crate) const DOMAIN_DEFINE_XML_FLAGS: u32 = 350;
    pub(crate) const DOMAIN_INTERFACE_ADDRESSES: u32 = 353;
    pub(crate) const DOMAIN_MIGRATE_START_POST_COPY: u32 = 364;
    pub(crate) const CONNECT_BASELINE_HYPERVISOR_CPU: u32 = 394;
    pub(crate) const DOMAIN_CHECKPOINT_CREATE_XML: u32 = 411;
    pub(crate) const DOMAIN_LIST_ALL_CHECKPOINTS: u32 = 413;
    pub(crate) const DOMAIN_CHECKPOINT_DELETE: u32 = 417;
    pub(crate) const DOMAIN_AGENT_SET_RESPONSE_TIMEOUT: u32 = 420;
    pub(crate) const DOMAIN_BACKUP_BEGIN: u32 = 421;
}

/// Of the program `packet::QEMU`.
pub(crate) mod qemu {
    pub(crate) const DOMAIN_MONITOR_COMMAND: u32 = 1;
    pub(crate) const DOMAIN_AGENT_COMMAND: u32 = 3;
}

/// How the protocol names a domain: drivers find it by its UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DomainName {
    pub(crate) name: String,
    uuid: [u8; 16],
    id: i32,
}

impl DomainName {
    pub(crate) fn read(from: &mut Reader) -> Result<Self, Malformed> {
        Ok(Self { name: from.text()?, uuid: from.uuid()?, id: from.i32()? })
    }

    pub(crate) fn write(&self, to: Writer) -> Writer {
        to.text(&self.name).fixed(&self.uuid).i32(self.id)
    }
}

/// The code and the message of an error; what follows them repeats the message in parts.
pub(crate) fn error(from: &mut Reader) -> Result<(i32, String), Malformed> {
    let code = from.i32()?;
    let _domain = from.i32()?;
    let message = from.optional(Reader::text)?;
    Ok((code, message.unwrap_or_else(|| "failed without a reason".to_owned())))
}

/// Types by `virTypedParameterType`.
pub(crate) fn parameter(from: &mut Reader) -> Result<Parameter, Malformed> {
    let name = from.text()?;
    let value = match from.i32()? {
        1 => Value::Integer(from.i32()?),
        2 => Value::Unsigned(from.u32()?.into()),
        3 => Value::Signed(from.i64()?),
        4 => Value::Unsigned(from.u64()?),
        5 => Value::Float(from.f64()?),
        6 => Value::Boolean(from.i32()? != 0),
        7 => Value::Text(from.text()?),
        other => return Err(Malformed::UnknownType(other)),
    };
    Ok(Parameter { name, value })
}

pub(crate) fn write_parameters(to: Writer, parameters: &[Parameter]) -> Writer {
    let count = u32::try_from(parameters.len()).unwrap_or(u32::MAX);
    parameters.iter().fold(to.u32(count), |to, Parameter { name, value }| {
        let to = to.text(name);
        match value {
            Value::Integer(value) => to.i32(1).i32(*value),
            Value::Signed(value) => to.i32(3).i64(*value),
            Value::Unsigned(value) => to.i32(4).u64(*value),
            Value::Float(value) => to.i32(5).u64(value.to_bits()),
            Value::Boolean(value) => to.i32(6).i32((*value).into()),
            Value::Text(value) => to.i32(7).text(value),
        }
    })
}

/// libvirt reads texts up to their first zero byte: more than that would be ignored.
pub(crate) fn checked<'a>(what: &'static str, text: &'a str) -> Result<&'a str, Error> {
    if text.contains('\0') { Err(Error::Text(what)) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_domain_goes_back_as_it_came() {
        let domain = DomainName { name: "probe".to_owned(), uuid: *b"0123456789abcdef", id: -1 };
        let bytes = domain.write(Writer::default()).into_bytes();
        assert_eq!(bytes.len(), 4 + 8 + 16 + 4);
        assert_eq!(DomainName::read(&mut Reader::new(bytes)), Ok(domain));
    }

    #[test]
    fn parameters_have_their_types() {
        let check = |bytes: &[u8], expected| {
            let bytes = [Writer::default().text("n").into_bytes().as_slice(), bytes].concat();
            let value = parameter(&mut Reader::new(bytes)).map(|parameter| parameter.value);
            assert_eq!(value, expected);
        };
        check(b"\0\0\0\x01\xff\xff\xff\xfe", Ok(Value::Integer(-2)));
        check(b"\0\0\0\x02\xff\xff\xff\xff", Ok(Value::Unsigned(u32::MAX.into())));
        check(b"\0\0\0\x04\0\0\0\x01\0\0\0\0", Ok(Value::Unsigned(1 << 32)));
        check(b"\0\0\0\x05\x3f\xe0\0\0\0\0\0\0", Ok(Value::Float(0.5)));
        check(b"\0\0\0\x06\0\0\0\x01", Ok(Value::Boolean(true)));
        check(b"\0\0\0\x07\0\0\0\x01x\0\0\0", Ok(Value::Text("x".to_owned())));
        check(b"\0\0\0\x09", Err(Malformed::UnknownType(9)));
    }

    #[test]
    fn an_error_has_words_even_when_libvirt_gives_none() {
        let bytes = Writer::default().i32(42).i32(10).optional(Some("gone")).into_bytes();
        assert_eq!(error(&mut Reader::new(bytes)), Ok((42, "gone".to_owned())));
        let bytes = Writer::default().i32(42).i32(10).optional(None).into_bytes();
        assert_eq!(error(&mut Reader::new(bytes)).unwrap().1, "failed without a reason");
    }

    proptest! {
        #[test]
        fn parameters_are_read_as_they_were_written(integer: i32, signed: i64, unsigned: u64, text in ".{0,9}") {
            let values = [Value::Integer(integer), Value::Signed(signed), Value::Unsigned(unsigned), Value::Text(text),
                          Value::Boolean(true), Value::Float(0.5)];
            let parameters = values.map(|value| Parameter { name: "n".to_owned(), value });
            let bytes = write_parameters(Writer::default(), &parameters).into_bytes();
            prop_assert_eq!(Reader::new(bytes).list(parameter), Ok(parameters.to_vec()));
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes: Vec<u8>) {
            let _ = DomainName::read(&mut Reader::new(bytes.as_slice()));
            let _ = error(&mut Reader::new(bytes.as_slice()));
            let _ = Reader::new(bytes).list(parameter);
        }
    }
}

//! A domain's XML for a node on which some of its disks lie elsewhere: on a device in place of an image, or the other way
//! round. Pure.

use std::collections::BTreeMap;

use quick_xml::events::{BytesEnd, BytesStart, Event};
use quick_xml::{Reader, Writer};

use crate::live::{ReadError, attribute, name};

const SOURCE: [&str; 4] = ["domain", "devices", "disk", "source"];
/// What is below a layer that tracks changes.
const STORE: [&str; 5] = ["domain", "devices", "disk", "source", "dataStore"];
const STORED: [&str; 6] = ["domain", "devices", "disk", "source", "dataStore", "source"];

/// Where a disk lies on the other node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its image or device.
    pub path: String,
    /// It is a device.
    pub block: bool,
    /// As many of its first bytes are the disk, where it is larger than that.
    pub slice: Option<u64>,
    /// It is below a layer that tracks what changes, which knows how large the disk is and has the same name there.
    pub layered: bool,
}

impl Place {
    /// The element that names it.
    fn source(&self) -> &'static [&'static str] {
        if self.layered { &STORED } else { &SOURCE }
    }

    fn kind(&self) -> &'static str {
        if self.block { "block" } else { "file" }
    }
}

/// `xml` with the disks of these volumes where `places` says.
///
/// # Errors
/// When the text is no XML.
pub fn relocated(xml: &str, places: &BTreeMap<String, Place>) -> Result<String, ReadError> {
    let names = names(xml)?;
    let mut reader = Reader::from_str(xml);
    let mut writer = Writer::new(Vec::new());
    let (mut path, mut disks): (Vec<String>, usize) = (Vec::new(), 0);
    let mut place = None;
    loop {
        let event = reader.read_event()?;
        // What is said inside of a source is about the old place.
        let inside = place.is_some_and(|place: &Place| {
            let source = place.source();
            path.get(..source.len()).is_some_and(|path| is(path, source))
        });
        match &event {
            Event::Eof => break,
            Event::Start(start) | Event::Empty(start) => {
                path.push(name(start));
                if is(&path, &["domain", "devices", "disk"]) {
                    place = names.get(disks).and_then(|name| places.get(name));
                    disks += 1;
                }
                let is_empty = matches!(event, Event::Empty(_));
                if !inside {
                    write(&mut writer, &path, start, is_empty, place)?;
                }
                if is_empty {
                    path.pop();
                }
                continue;
            }
            Event::End(_) => {
                path.pop();
            }
            _ => {}
        }
        if !inside {
            put(&mut writer, event)?;
        }
    }
    Ok(String::from_utf8_lossy(&writer.into_inner()).into_owned())
}

fn is(path: &[String], wanted: &[&str]) -> bool {
    path.iter().map(String::as_str).eq(wanted.iter().copied())
}

fn put(writer: &mut Writer<Vec<u8>>, event: Event<'_>) -> Result<(), ReadError> {
    writer.write_event(event).map_err(|error| ReadError::Syntax(error.into()))
}

fn write(
    writer: &mut Writer<Vec<u8>>,
    path: &[String],
    start: &BytesStart<'_>,
    is_empty: bool,
    place: Option<&Place>,
) -> Result<(), ReadError> {
    let as_it_is = |start: BytesStart<'static>| if is_empty { Event::Empty(start) } else { Event::Start(start) };
    let Some(place) = place else { return put(writer, as_it_is(start.to_owned())) };
    if place.layered && is(path, &STORE) {
        let mut store = BytesStart::new("dataStore");
        store.push_attribute(("type", place.kind()));
        return put(writer, as_it_is(store));
    }
    if !place.layered && is(path, &["domain", "devices", "disk"]) {
        let mut disk = BytesStart::new("disk");
        disk.push_attribute(("type", place.kind()));
        let rest = ["device", "model", "rawio", "sgio", "snapshot"].map(|key| (key, attribute(start, key)));
        for (key, value) in rest.iter().filter(|(_, value)| !value.is_empty()) {
            disk.push_attribute((*key, value.as_str()));
        }
        return put(writer, as_it_is(disk));
    }
    if !is(path, place.source()) {
        return put(writer, as_it_is(start.to_owned()));
    }
    let mut source = BytesStart::new("source");
    source.push_attribute((if place.block { "dev" } else { "file" }, place.path.as_str()));
    let Some(size) = place.slice else { return put(writer, Event::Empty(source)) };
    put(writer, Event::Start(source))?;
    put(writer, Event::Start(BytesStart::new("slices")))?;
    let mut slice = BytesStart::new("slice");
    slice.push_attribute(("type", "storage"));
    slice.push_attribute(("offset", "0"));
    slice.push_attribute(("size", size.to_string().as_str()));
    put(writer, Event::Empty(slice))?;
    put(writer, Event::End(BytesEnd::new("slices")))?;
    put(writer, Event::End(BytesEnd::new("source")))
}

/// The volumes of the disks in `xml`, in the order of the disks; empty for one that is none of a VMI's.
fn names(xml: &str) -> Result<Vec<String>, ReadError> {
    let mut reader = Reader::from_str(xml);
    let (mut path, mut names): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    loop {
        match reader.read_event()? {
            Event::Start(start) => {
                path.push(name(&start));
                note(&path, &start, &mut names);
            }
            Event::Empty(start) => {
                path.push(name(&start));
                note(&path, &start, &mut names);
                path.pop();
            }
            Event::End(_) => {
                path.pop();
            }
            Event::Eof => return Ok(names),
            _ => {}
        }
    }
}

fn note(path: &[String], start: &BytesStart<'_>, names: &mut Vec<String>) {
    if is(path, &["domain", "devices", "disk"]) {
        names.push(String::new());
    } else if is(path, &["domain", "devices", "disk", "alias"])
        && let Some(last) = names.last_mut()
    {
        let alias = attribute(start, "name");
        alias.strip_prefix("ua-").unwrap_or(&alias).clone_into(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "<domain type='kvm'>\n  <name>a &amp; b</name>\n  <devices>\n    <disk type='file' device='disk' \
                       model='virtio-transitional'>\n      <driver name='qemu' type='raw'/>\n      <source \
                       file='/run/root.img' index='2'>\n <privateData/>\n</source>\n      <target dev='vda' bus='virtio'/>\n      <alias \
                       name='ua-root'/>\n    </disk>\n    <disk type='block' device='disk'>\n      <source \
                       dev='/dev/data'/>\n      <alias name='ua-data'/>\n    </disk>\n  </devices>\n</domain>\n";

    #[track_caller]
    fn check(volume: &str, place: Place, gone: &[&str], there: &[&str]) {
        let found = relocated(XML, &[(volume.to_owned(), place)].into()).unwrap();
        for text in gone {
            assert!(!found.contains(text), "{text} in {found}");
        }
        for text in there {
            assert!(found.contains(text), "{text} not in {found}");
        }
        assert!(found.contains("<name>a &amp; b</name>"), "{found}");
    }

    #[test]
    fn a_disk_lies_elsewhere_and_nothing_else_changes() {
        assert_eq!(relocated(XML, &BTreeMap::new()).unwrap(), XML);
        let device = Place { path: "/dev/root".into(), block: true, slice: Some(512), layered: false };
        let there = [
            "<disk type=\"block\" device=\"disk\" model=\"virtio-transitional\">",
            "<source dev=\"/dev/root\"><slices><slice type=\"storage\" offset=\"0\" size=\"512\"/></slices></source>",
            "<source dev='/dev/data'/>",
        ];
        check("root", device, &["/run/root.img"], &there);
        let image = Place { path: "/run/it's.img".into(), block: false, ..Place::default() };
        let there = ["<disk type=\"file\" device=\"disk\">", "file='/run/root.img' index='2'>\n <privateData/>"];
        check("data", image, &["/dev/data"], &there);
    }

    #[test]
    fn below_a_layer_only_the_data_lie_elsewhere() {
        const XML: &str = "<domain><devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/>\
                           <source file='/run/root.cbt'><dataStore type='file'><format type='raw'/>\
                           <source file='/run/root.img' index='3'><privateData/></source></dataStore></source>\
                           <backingStore/><alias name='ua-root'/></disk></devices></domain>";
        let place = Place { path: "/dev/root".into(), block: true, slice: None, layered: true };
        let there = "<source file='/run/root.cbt'><dataStore type=\"block\"><format type='raw'/>\
                     <source dev=\"/dev/root\"/></dataStore></source><backingStore/>";
        let found = relocated(XML, &[("root".to_owned(), place)].into()).unwrap();
        assert!(found.starts_with("<domain><devices><disk type='file' device='disk'>"), "{found}");
        assert!(found.contains(there) && !found.contains("/run/root.img"), "{found}");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A definition that was changed anywhere is relocated, or refused: what comes out is a definition again.
        #[test]
        fn any_definition_is_relocated_or_refused(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"<>/='\" &;!-x\0".to_vec())), 0..12),
            cut in any::<prop::sample::Index>(), layered in any::<bool>(), block in any::<bool>(), slice in any::<Option<u64>>(),
        ) {
            let mut bytes = b"<domain><devices><disk type='file' device='disk'><driver name='qemu'/><source file='/a' index='2'>\
                <dataStore type='file'><format type='raw'/><source file='/b'/></dataStore></source><target dev='vda'/>\
                <alias name='ua-root'/></disk></devices></domain>".to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            let text = String::from_utf8_lossy(&bytes);
            let place = Place { path: "/dev/<&\"root".into(), block, slice, layered };
            if let Ok(moved) = relocated(&text, &[("root".to_owned(), place)].into()) {
                prop_assert!(names(&moved).is_ok(), "{} became {}", text, moved);
            }
        }
    }
}

//! What a node's libvirt and QEMU can give a guest: three XML documents of libvirt's as facts.
//!
//! | document | facts |
//! |---|---|
//! | domain capabilities | the host's model and what it needs, models that can be had, Hyper-V features, SEV |
//! | the host's model expanded | every feature that can be had |
//! | capabilities | machine types, the timer |

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde::{Deserialize, Serialize};

use crate::live::{ReadError, attribute, name};
use crate::xml::Element;

/// Larger than any of the documents; longer text is not read.
const LIMIT: usize = 4 << 20;

/// See the table above. Lists are in libvirt's order, without repetitions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCapabilities {
    /// The model a guest gets that asks for the host's.
    pub host_model: String,
    /// `Intel`, `AMD`, …
    pub vendor: String,
    /// Features the host's model has beyond its name.
    pub host_model_features: Vec<String>,
    /// Features the host's model names and this host lacks.
    pub host_model_lacks: Vec<String>,
    /// Every feature a guest can have.
    pub features: Vec<String>,
    /// Models a guest can have.
    pub models: Vec<String>,
    /// Machine types that are not deprecated.
    pub machines: Vec<String>,
    /// Hyper-V features.
    pub hyperv: Vec<String>,
    pub sev: bool,
    pub sev_es: bool,
    /// Hz of the time stamp counter; 0 when it is not steady.
    pub tsc_frequency: u64,
    pub tsc_scalable: bool,
    /// Why nothing of this is known, if nothing is.
    pub trouble: String,
}

impl NodeCapabilities {
    /// Reads `<domainCapabilities>`.
    pub fn read_domain(&mut self, xml: &str) -> Result<(), ReadError> {
        let (mut mode, mut usable, mut listed) = (String::new(), false, String::new());
        walk(xml, |path, at| match (path, at) {
            (["domainCapabilities", "cpu", "mode"], At::Open(start)) => mode = attribute(start, "name"),
            (["domainCapabilities", "cpu", "mode", "model"], At::Open(start)) => {
                usable = attribute(start, "usable") == "yes";
            }
            (["domainCapabilities", "cpu", "mode", "model"], At::Text(text)) => match mode.as_str() {
                "host-model" => text.clone_into(&mut self.host_model),
                "custom" if usable => add(&mut self.models, text),
                _ => {}
            },
            (["domainCapabilities", "cpu", "mode", "vendor"], At::Text(text)) if mode == "host-model" => {
                text.clone_into(&mut self.vendor);
            }
            (["domainCapabilities", "cpu", "mode", "feature"], At::Open(start)) if mode == "host-model" => {
                let has = attribute(start, "policy") == "require";
                let list = if has { &mut self.host_model_features } else { &mut self.host_model_lacks };
                add(list, &attribute(start, "name"));
            }
            (["domainCapabilities", "features", "sev"], At::Open(start)) => {
                self.sev = attribute(start, "supported") == "yes";
            }
            (["domainCapabilities", "features", "sev", "maxESGuests"], At::Text(text)) => {
                self.sev_es = self.sev && text.parse::<u64>().is_ok_and(|guests| guests > 0);
            }
            (["domainCapabilities", "features", "hyperv", "enum"], At::Open(start)) => {
                listed = attribute(start, "name");
            }
            (["domainCapabilities", "features", "hyperv", "enum", "value"], At::Text(text)) if listed == "features" => {
                add(&mut self.hyperv, text);
            }
            _ => {}
        })
    }

    /// The host's model as the `<cpu>` that libvirt expands.
    pub fn host_cpu(&self) -> String {
        let feature =
            |name: &String, policy: &'static str| Element::new("feature").attr("policy", policy).attr("name", name);
        Element::new("cpu")
            .child(Element::with_text("model", &self.host_model).attr("fallback", "forbid"))
            .children((!self.vendor.is_empty()).then(|| Element::with_text("vendor", &self.vendor)))
            .children(self.host_model_features.iter().map(|name| feature(name, "require")))
            .children(self.host_model_lacks.iter().map(|name| feature(name, "disable")))
            .render()
    }

    /// Reads the `<cpu>` that the host's model was expanded to.
    pub fn read_expanded(&mut self, xml: &str) -> Result<(), ReadError> {
        walk(xml, |path, at| {
            if let (["cpu", "feature"], At::Open(start)) = (path, at)
                && attribute(start, "policy") == "require"
            {
                add(&mut self.features, &attribute(start, "name"));
            }
        })
    }

    /// Reads `<capabilities>`.
    pub fn read_host(&mut self, xml: &str) -> Result<(), ReadError> {
        let (mut architecture, mut deprecated) = (String::new(), false);
        walk(xml, |path, at| match (path, at) {
            (["capabilities", "host", "cpu", "counter"], At::Open(start)) if attribute(start, "name") == "tsc" => {
                self.tsc_frequency = attribute(start, "frequency").parse().unwrap_or(0);
                self.tsc_scalable = attribute(start, "scaling") == "yes";
            }
            (["capabilities", "guest", "arch"], At::Open(start)) => architecture = attribute(start, "name"),
            (["capabilities", "guest", "arch", "machine"], At::Open(start)) => {
                deprecated = attribute(start, "deprecated") == "yes";
            }
            (["capabilities", "guest", "arch", "machine"], At::Text(text))
                if architecture == "x86_64" && !deprecated =>
            {
                add(&mut self.machines, text);
            }
            _ => {}
        })
    }
}

fn add(list: &mut Vec<String>, item: &str) {
    if !item.is_empty() && !list.iter().any(|known| known == item) {
        list.push(item.to_owned());
    }
}

enum At<'a> {
    /// An element begins.
    Open(&'a BytesStart<'a>),
    /// Its text.
    Text(&'a str),
}

fn names(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

/// Calls `visit` for each element and each text with the path of element names to it.
fn walk(xml: &str, mut visit: impl FnMut(&[&str], At<'_>)) -> Result<(), ReadError> {
    if xml.len() > LIMIT {
        return Err(ReadError::TooLong(xml.len()));
    }
    let mut reader = Reader::from_str(xml);
    let mut path: Vec<String> = Vec::new();
    loop {
        let event = reader.read_event()?;
        let (start, empty) = match &event {
            Event::Start(start) => (Some(start), false),
            Event::Empty(start) => (Some(start), true),
            _ => (None, false),
        };
        if let Some(start) = start {
            path.push(name(start));
            visit(&names(&path), At::Open(start));
            if empty {
                path.pop();
            }
        }
        match &event {
            Event::Text(text) if !text.trim().is_empty() => {
                visit(&names(&path), At::Text(text.trim()));
            }
            Event::End(_) => {
                path.pop();
            }
            Event::Eof => return Ok(()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = "<domainCapabilities><domain>kvm</domain><cpu>
        <mode name='host-passthrough' supported='yes'><enum name='hostPassthroughMigratable'><value>on</value></enum></mode>
        <mode name='host-model' supported='yes'>
          <model fallback='forbid'>Skylake-Client-IBRS</model><vendor>Intel</vendor>
          <feature policy='require' name='ss'/><feature policy='require' name='vmx'/>
          <feature policy='disable' name='mpx'/>
        </mode>
        <mode name='custom' supported='yes'>
          <model usable='yes' vendor='unknown' canonical='qemu64-v1'>qemu64</model>
          <model usable='no' vendor='Intel'>Icelake-Server</model>
          <blockers model='Icelake-Server'><feature name='avx512f'/></blockers>
          <model usable='yes' vendor='Intel'>Skylake-Client-IBRS</model>
        </mode></cpu>
        <features><sev supported='yes'><maxESGuests>7</maxESGuests></sev>
          <hyperv supported='yes'><enum name='features'><value>relaxed</value><value>vapic</value></enum>
            <enum name='other'><value>x</value></enum></hyperv></features></domainCapabilities>";

    #[test]
    fn three_documents_are_one_set_of_facts() {
        let mut found = NodeCapabilities::default();
        found.read_domain(DOMAIN).unwrap();
        found
            .read_expanded(
                "<cpu mode='custom'><model>Skylake-Client-IBRS</model><feature policy='require' name='aes'/>\
                 <feature policy='disable' name='mpx'/><feature policy='require' name='sse4.1'/></cpu>",
            )
            .unwrap();
        found
            .read_host(
                "<capabilities><host><cpu><counter name='tsc' frequency='2112000000' scaling='no'/></cpu></host>\
                 <guest><os_type>hvm</os_type><arch name='i686'><machine>isapc</machine></arch></guest>\
                 <guest><arch name='x86_64'><machine canonical='pc-q35-10.0'>q35</machine>\
                 <machine deprecated='yes'>pc-q35-2.4</machine><domain type='kvm'/></arch></guest></capabilities>",
            )
            .unwrap();
        let expect = NodeCapabilities {
            host_model: "Skylake-Client-IBRS".into(),
            vendor: "Intel".into(),
            host_model_features: vec!["ss".into(), "vmx".into()],
            host_model_lacks: vec!["mpx".into()],
            features: vec!["aes".into(), "sse4.1".into()],
            models: vec!["qemu64".into(), "Skylake-Client-IBRS".into()],
            machines: vec!["q35".into()],
            hyperv: vec!["relaxed".into(), "vapic".into()],
            sev: true,
            sev_es: true,
            tsc_frequency: 2_112_000_000,
            tsc_scalable: false,
            trouble: String::new(),
        };
        assert_eq!(found, expect);
        let cpu = found.host_cpu().replace(['\n', ' '], "");
        let wanted = "<cpu><modelfallback='forbid'>Skylake-Client-IBRS</model><vendor>Intel</vendor>\
                      <featurepolicy='require'name='ss'/><featurepolicy='require'name='vmx'/>\
                      <featurepolicy='disable'name='mpx'/></cpu>";
        assert_eq!(cpu.replace('"', "'"), wanted);
    }

    #[test]
    fn broken_documents_are_errors() {
        let mut found = NodeCapabilities::default();
        assert!(found.read_host("<capabilities><host></guest>").is_err());
        assert!(matches!(found.read_domain(&" ".repeat(LIMIT + 1)), Err(ReadError::TooLong(_))));
    }
}

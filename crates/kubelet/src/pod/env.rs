//! Pure: environment variables and the `$(NAME)` references in them and in commands.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, Service};

/// ConfigMaps or Secrets by name, values as text; `None` marks one that does not exist.
pub(crate) type Sources = BTreeMap<String, Option<BTreeMap<String, String>>>;

/// The amount of a resource, by container (none: the one itself), its name and the divisor.
pub(crate) type ResourceField<'a> = dyn Fn(Option<&str>, &str, i64) -> Option<String> + 'a;

/// What a container's environment is made of besides its spec.
pub(crate) struct Inputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) config_maps: &'a Sources,
    pub(crate) secrets: &'a Sources,
    /// Those a pod of this namespace sees: its own and `kubernetes`.
    pub(crate) services: &'a [Service],
    pub(crate) field: &'a dyn Fn(&str) -> Option<String>,
    pub(crate) resource: &'a ResourceField<'a>,
}

/// The container's environment in order; a later variable of the same name replaces an earlier one.
pub(crate) fn resolve(container: &Container, inputs: &Inputs<'_>) -> Result<Vec<(String, String)>, String> {
    let links = inputs.pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let mut env = Env::default();
    for (name, value) in service_variables(inputs.services, links) {
        env.set(name, value);
    }
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let (kind, name, optional, found) = if let Some(map) = &source.config_map_ref {
            ("configmap", &map.name, map.optional, inputs.config_maps.get(&map.name))
        } else if let Some(secret) = &source.secret_ref {
            ("secret", &secret.name, secret.optional, inputs.secrets.get(&secret.name))
        } else {
            continue;
        };
        match found.and_then(Option::as_ref) {
            Some(data) => {
                for (key, value) in data {
                    env.set(format!("{prefix}{key}"), value.clone());
                }
            }
            None if optional == Some(true) => {}
            None => return Err(format!("{kind} {name:?} not found")),
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, None) => Some(expand(variable.value.as_deref().unwrap_or_default(), &|name| env.get(name))),
            (_, Some(from)) => {
                if let Some(field) = &from.field_ref {
                    let path = &field.field_path;
                    Some((inputs.field)(path).ok_or_else(|| format!("unsupported fieldPath: {path}"))?)
                } else if let Some(resource) = &from.resource_field_ref {
                    let divisor =
                        resource.divisor.as_ref().and_then(crate::resources::milli).filter(|d| *d > 0).unwrap_or(1000);
                    let wanted = &resource.resource;
                    let value = (inputs.resource)(resource.container_name.as_deref(), wanted, divisor);
                    Some(value.ok_or_else(|| format!("unsupported container resource: {wanted}"))?)
                } else if let Some(key) = &from.config_map_key_ref {
                    lookup("configmap", &key.name, &key.key, key.optional, inputs.config_maps, inputs.pod)?
                } else if let Some(key) = &from.secret_key_ref {
                    lookup("secret", &key.name, &key.key, key.optional, inputs.secrets, inputs.pod)?
                } else {
                    Some(String::new())
                }
            }
        };
        if let Some(value) = value {
            env.set(variable.name.clone(), value);
        }
    }
    Ok(env.list)
}

#[derive(Default)]
struct Env {
    list: Vec<(String, String)>,
}

impl Env {
    fn set(&mut self, name: String, value: String) {
        self.list.retain(|(known, _)| *known != name);
        self.list.push((name, value));
    }

    fn get(&self, name: &str) -> Option<String> {
        self.list.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

fn lookup(
    kind: &str,
    name: &str,
    key: &str,
    optional: Option<bool>,
    sources: &Sources,
    pod: &Pod,
) -> Result<Option<String>, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    match sources.get(name).and_then(Option::as_ref) {
        Some(data) => match data.get(key) {
            Some(value) => Ok(Some(value.clone())),
            None if optional == Some(true) => Ok(None),
            None => {
                let title = if kind == "secret" { "Secret" } else { "ConfigMap" };
                Err(format!("couldn't find key {key} in {title} {namespace}/{name}"))
            }
        },
        None if optional == Some(true) => Ok(None),
        None => Err(format!("{kind} {name:?} not found")),
    }
}

/// Replaces `$(NAME)` by what `lookup` knows; `$$` is `$`; an unknown reference stays as written.
pub(crate) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(tail) = rest.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = tail;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

/// The variables that name Services: always those of `kubernetes`, the others when the pod wants links.
fn service_variables(services: &[Service], links: bool) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let is_api = name == "kubernetes" && service.metadata.namespace.as_deref() == Some("default");
        let Some(spec) = service.spec.as_ref().filter(|_| links || is_api) else { continue };
        let ip = spec.cluster_ip.as_deref().unwrap_or_default();
        let Some(first) = spec.ports.iter().flatten().next().filter(|_| !ip.is_empty() && ip != "None") else {
            continue;
        };
        let prefix = name.to_ascii_uppercase().replace('-', "_");
        variables.push((format!("{prefix}_SERVICE_HOST"), ip.to_owned()));
        variables.push((format!("{prefix}_SERVICE_PORT"), first.port.to_string()));
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                let port_name = port_name.to_ascii_uppercase().replace('-', "_");
                variables.push((format!("{prefix}_SERVICE_PORT_{port_name}"), port.port.to_string()));
            }
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
            let url = format!("{}://{host}:{}", protocol.to_ascii_lowercase(), port.port);
            if index == 0 {
                variables.push((format!("{prefix}_PORT"), url.clone()));
            }
            let base = format!("{prefix}_PORT_{}_{protocol}", port.port);
            variables.push((base.clone(), url));
            variables.push((format!("{base}_PROTO"), protocol.to_ascii_lowercase()));
            variables.push((format!("{base}_PORT"), port.port.to_string()));
            variables.push((format!("{base}_ADDR"), ip.to_owned()));
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let known = |name: &str| (name == "A").then(|| "1".to_owned());
        assert_eq!(expand(text, &known), expect);
    }

    #[test]
    fn references() {
        check("plain", "plain");
        check("$(A)-$(A)", "1-1");
        check("$(B)", "$(B)");
        check("$$(A)", "$(A)");
        check("$$$(A)", "$1");
        check("$(A", "$(A");
        check("$", "$");
        check("$A $x", "$A $x");
    }

    proptest! {
        #[test]
        fn without_dollar_nothing_changes(text in "[^$]*") {
            prop_assert_eq!(expand(&text, &|_| Some("x".into())), text);
        }

        #[test]
        fn doubling_dollars_escapes_everything(text in ".*") {
            prop_assert_eq!(expand(&text.replace('$', "$$"), &|_| Some("x".into())), text);
        }
    }

    fn environment(container: serde_json::Value) -> Result<Vec<(String, String)>, String> {
        let container: Container = serde_json::from_value(container).unwrap();
        let service = json!({"metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}});
        let map = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let inputs = Inputs {
            pod: &Pod::default(),
            config_maps: &Sources::from([("cm".to_owned(), Some(map))]),
            secrets: &Sources::new(),
            services: &[serde_json::from_value(service).unwrap()],
            field: &|path| (path == "metadata.name").then(|| "pod".to_owned()),
            resource: &|_, _, _| None,
        };
        resolve(&container, &inputs)
    }

    #[test]
    fn sources_in_order() {
        let env = environment(json!({"name": "c",
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}],
            "env": [{"name": "X", "value": "$(P_k)/$(Y)"}, {"name": "Y", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "Z", "value": "$(Y)@$(KUBERNETES_SERVICE_HOST)"},
                {"name": "O", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": true}}}]}))
        .unwrap();
        let own: Vec<_> = env.iter().filter(|(name, _)| !name.starts_with("KUBERNETES")).cloned().collect();
        let expect = [("P_k", "v"), ("X", "v/$(Y)"), ("Y", "pod"), ("Z", "pod@10.96.0.1")];
        assert_eq!(own, expect.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert!(env.contains(&("KUBERNETES_PORT_443_TCP".to_owned(), "tcp://10.96.0.1:443".to_owned())));
    }

    #[test]
    fn missing_sources_are_named() {
        let key =
            |kind: &str| json!({"name": "c", "env": [{"name": "X", "valueFrom": {kind: {"name": "cm", "key": "no"}}}]});
        assert_eq!(environment(key("configMapKeyRef")).unwrap_err(), "couldn't find key no in ConfigMap /cm");
        assert_eq!(environment(key("secretKeyRef")).unwrap_err(), "secret \"cm\" not found");
    }
}

//! The expressions of webhook configurations and policies: which names they may use, and what each must come to.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use apimachinery::cel::types::{Object, Type};
use apimachinery::cel::{Program, check};
use apimachinery::schema::builtin;

/// The names an expression may use.
pub(crate) struct Scope {
    names: HashMap<String, Type>,
    variables: BTreeMap<String, Type>,
    /// Whether expressions may say how the object is changed.
    changes: bool,
}

fn object(name: &str, fields: &[(&str, Type)]) -> Type {
    let fields = fields.iter().map(|(field, type_)| ((*field).to_owned(), type_.clone())).collect();
    Type::Object(Arc::new(Object { name: name.to_owned(), fields }))
}

/// What is known of a request.
pub(crate) fn request() -> Type {
    let text = Type::TEXT;
    let texts = Type::List(Arc::new(Type::TEXT), 1);
    let named =
        |kind: &str, last: &str| object(kind, &[("group", Type::TEXT), ("version", Type::TEXT), (last, Type::TEXT)]);
    let kind = named("kubernetes.GroupVersionKind", "kind");
    let resource = named("kubernetes.GroupVersionResource", "resource");
    let user = object(
        "kubernetes.UserInfo",
        &[
            ("username", text.clone()),
            ("uid", text.clone()),
            ("groups", texts.clone()),
            ("extra", Type::Map(Arc::new(Type::TEXT), Arc::new(texts), 1)),
        ],
    );
    object(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text.clone()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text.clone()),
            ("name", text.clone()),
            ("namespace", text.clone()),
            ("operation", text),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

impl Scope {
    /// The names of a webhook's match conditions.
    pub(crate) fn webhook() -> Self {
        let dynamic = ["object", "oldObject", "authorizer"].map(|name| (name.to_owned(), Type::Dyn));
        let names = dynamic.into_iter().chain([("request".to_owned(), request())]).collect();
        Self { names, variables: BTreeMap::new(), changes: false }
    }

    /// The names of a policy's expressions; `params` only where the policy has parameters.
    pub(crate) fn policy(params: bool) -> Self {
        let mut scope = Self::webhook();
        let namespace = builtin::schema("", "v1", "Namespace");
        let namespace = namespace.map_or(Type::Dyn, |schema| Type::of(&schema, "kubernetes.Namespace"));
        scope.names.insert("namespaceObject".to_owned(), namespace);
        if params {
            scope.names.insert("params".to_owned(), Type::Dyn);
        }
        scope
    }

    /// Lets what follows say how the object is changed.
    pub(crate) fn allow_changes(&mut self) {
        self.changes = true;
    }

    /// The type of what the expressions are about, where it is known.
    pub(crate) fn about(mut self, kind: &Type, params: Type) -> Self {
        for name in ["object", "oldObject"] {
            self.names.insert(name.to_owned(), kind.clone());
        }
        self.names.insert("params".to_owned(), params);
        self
    }

    /// Lets what follows use `variables.NAME`.
    pub(crate) fn declare(&mut self, name: &str, type_: Type) {
        self.variables.insert(name.to_owned(), type_);
        self.open_variables();
    }

    /// Lets what follows use `variables`, also when there is none.
    pub(crate) fn open_variables(&mut self) {
        let fields = Object { name: "kubernetes.variables".to_owned(), fields: self.variables.clone() };
        self.names.insert("variables".to_owned(), Type::Object(Arc::new(fields)));
    }

    /// What an expression comes to.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn type_of(&self, source: &str) -> Result<Type, String> {
        let program = Program::compile(source)?;
        let checked =
            if self.changes { check::check_change(&program, &self.names) } else { check::check(&program, &self.names) };
        checked.map(|checked| checked.type_)
    }

    /// What is wrong with an expression that must come to one of these types.
    pub(crate) fn problem(&self, source: &str, wanted: &[&str]) -> Option<String> {
        match self.type_of(source) {
            Err(error) => Some(format!("compilation failed: {error}")),
            Ok(Type::Null) if wanted.contains(&"null_type") => None,
            Ok(type_) if wanted.contains(&type_.to_string().as_str()) => None,
            Ok(type_) => match wanted {
                [one] => Some(format!("must evaluate to {one} but got {type_}")),
                many => Some(format!("must evaluate to one of [{}] but got {type_}", many.join(" "))),
            },
        }
    }
}

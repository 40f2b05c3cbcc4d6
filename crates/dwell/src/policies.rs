// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wait policies by name: those that come with Dwell, and a program's own.

use std::sync::{Arc, PoisonError, RwLock};

use dwell_policy::{WaitPolicy, policy};

use crate::error::{Error, Result};

static OWN: RwLock<Vec<Arc<dyn WaitPolicy>>> = RwLock::new(Vec::new());

/// Makes a policy of one's own known by its [name](WaitPolicy::name), so that whatever takes a
/// policy's name (a bench, an explanation) takes it too. One that is registered again is replaced.
///
/// # Errors
/// A name that Dwell's own policies have, or that is not made of lower-case letters, digits and
/// hyphens.
pub fn register(own: Arc<dyn WaitPolicy>) -> Result<()> {
    let name = own.name().to_owned();
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || !name.chars().all(fits) {
        let what = "a policy's name is made of lower-case letters, digits and hyphens";
        return Err(Error::invalid(name, what));
    }
    if policy::by_name(&name).is_some() {
        return Err(Error::invalid(name, "a policy of Dwell's own has this name"));
    }
    let mut policies = OWN.write().unwrap_or_else(PoisonError::into_inner);
    policies.retain(|known| known.name() != name);
    policies.push(own);
    Ok(())
}

/// A policy by its name, with its default parameters.
pub fn by_name(name: &str) -> Option<Arc<dyn WaitPolicy>> {
    if let Some(known) = policy::by_name(name) {
        return Some(Arc::new(known));
    }
    let own = OWN.read().unwrap_or_else(PoisonError::into_inner);
    own.iter().find(|known| known.name() == name).cloned()
}

/// The names of all policies, Dwell's own first.
pub fn names() -> Vec<String> {
    let own = OWN.read().unwrap_or_else(PoisonError::into_inner);
    let own = own.iter().map(|policy| policy.name().to_owned());
    policy::NAMES.map(String::from).into_iter().chain(own).collect()
}

#[cfg(test)]
mod tests {
    use dwell_policy::{Decision, Reason, Wait};

    use super::*;

    struct Named(&'static str, Reason);

    impl WaitPolicy for Named {
        fn name(&self) -> &str {
            self.0
        }

        fn choose(&self, wait: &Wait<'_>) -> Decision {
            policy::block(wait, self.1)
        }
    }

    #[test]
    fn a_registered_policy_is_found_by_its_name_and_can_be_replaced() {
        assert!(by_name("mine-1").is_none());
        register(Arc::new(Named("mine-1", Reason::Fixed))).unwrap();
        register(Arc::new(Named("mine-1", Reason::Pays))).unwrap();
        assert_eq!(names().iter().filter(|name| *name == "mine-1").count(), 1);
        let wait = Wait::new(dwell_policy::Kind::Read, 4096, None);
        assert_eq!(by_name("mine-1").unwrap().choose(&wait).reason, Reason::Pays);
        assert_eq!(by_name("smartcon").unwrap().name(), "smartcon");
    }

    #[test]
    fn a_name_that_is_taken_or_unfit_is_refused() {
        for name in ["block", "", "My Policy", "a:b"] {
            let error = register(Arc::new(Named(name, Reason::Fixed))).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("name"), "{error}");
        }
    }
}

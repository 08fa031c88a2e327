//! Deploy grants: JWTs signed with Ed25519, as tenancy mints them and OpenBao checks them.
//!
//! Invariant: the private key never leaves its [`GrantKey`]; a grant is checked against nothing but the public key that
//! the checker was set up with.
//!
//! The compact form is three base64 texts, so `ring` is all it takes; a JWT library would add its own rules for the
//! claims, which must be OpenBao's.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde_json::{Value, json};

/// What comes before the 32 bytes of an Ed25519 key in its SubjectPublicKeyInfo (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A key pair that signs grants.
pub struct GrantKey(Ed25519KeyPair);

impl GrantKey {
    /// A new pair.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn generate() -> io::Result<GrantKey> {
        let failed = |_| io::Error::other("no Ed25519 key could be made: the system gave no randomness");
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let key =
            Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).map_err(|rejected| io::Error::other(rejected.to_string()))?;
        Ok(GrantKey(key))
    }

    /// The public half as SPKI PEM, fit for OpenBao's `jwt_validation_pubkeys`.
    pub fn public_key_pem(&self) -> String {
        let mut der = SPKI_PREFIX.to_vec();
        der.extend_from_slice(self.0.public_key().as_ref());
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    }

    /// The claims as a signed JWT.
    pub fn sign(&self, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": "EdDSA", "typ": "JWT"})), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

/// A public key that checks grants.
#[derive(Clone)]
pub struct GrantCheck([u8; 32]);

/// Why a grant's form or signature is no good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadGrant {
    /// Not three parts.
    Parts,
    /// A part is not base64.
    Base64,
    /// Not signed by the key, or not with EdDSA.
    Signature,
    /// The claims are no JSON object.
    Claims,
}

impl GrantCheck {
    /// The key in a SPKI PEM.
    ///
    /// # Errors
    /// If it is no Ed25519 public key.
    pub fn from_pem(pem: &str) -> io::Result<GrantCheck> {
        let failed = || io::Error::other("the public key must be an Ed25519 key in PEM (SubjectPublicKeyInfo)");
        let text: String = pem.lines().map(str::trim).filter(|line| !line.starts_with("-----")).collect();
        let der = STANDARD.decode(text).map_err(|_| failed())?;
        let key = der.strip_prefix(&SPKI_PREFIX).ok_or_else(failed)?;
        Ok(GrantCheck(key.try_into().map_err(|_| failed())?))
    }

    /// The claims of a grant that this key's owner signed. Their content is not judged.
    ///
    /// # Errors
    /// See [`BadGrant`].
    pub fn claims(&self, grant: &str) -> Result<Value, BadGrant> {
        let parts: Vec<&str> = grant.split('.').collect();
        let &[head, claims, signature] = parts.as_slice() else { return Err(BadGrant::Parts) };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| BadGrant::Base64);
        let header: Value = serde_json::from_slice(&decode(head)?).map_err(|_| BadGrant::Base64)?;
        if header.get("alg") != Some(&json!("EdDSA")) {
            return Err(BadGrant::Signature);
        }
        UnparsedPublicKey::new(&ED25519, &self.0)
            .verify(format!("{head}.{claims}").as_bytes(), &decode(signature)?)
            .map_err(|_| BadGrant::Signature)?;
        let claims: Value = serde_json::from_slice(&decode(claims)?).map_err(|_| BadGrant::Claims)?;
        if claims.is_object() { Ok(claims) } else { Err(BadGrant::Claims) }
    }
}

/// A grant with its signature taken away: good to look at, good for nothing else.
pub fn without_signature(grant: &str) -> String {
    grant.rsplit_once('.').map_or_else(String::new, |(signed, _)| format!("{signed}.removed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_good_for_the_key_that_signed_it_and_for_no_other() {
        let (key, other) = (GrantKey::generate().unwrap(), GrantKey::generate().unwrap());
        let grant = key.sign(&json!({"env_id": "e4"}));
        let check = |key: &GrantKey| GrantCheck::from_pem(&key.public_key_pem()).unwrap().claims(&grant);
        assert_eq!(check(&key), Ok(json!({"env_id": "e4"})));
        assert_eq!(check(&other), Err(BadGrant::Signature));
    }

    #[test]
    fn a_changed_or_unsigned_grant_is_refused() {
        let key = GrantKey::generate().unwrap();
        let check = GrantCheck::from_pem(&key.public_key_pem()).unwrap();
        let grant = key.sign(&json!({"env_id": "e4"}));
        let changed = grant.replacen(
            &URL_SAFE_NO_PAD.encode(r#"{"env_id":"e4"}"#),
            &URL_SAFE_NO_PAD.encode(r#"{"env_id":"e5"}"#),
            1,
        );
        assert_ne!(changed, grant);
        assert_eq!(check.claims(&changed), Err(BadGrant::Signature));
        assert_eq!(check.claims(&without_signature(&grant)), Err(BadGrant::Base64));
        let none = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), URL_SAFE_NO_PAD.encode("{}"));
        assert_eq!(check.claims(&none), Err(BadGrant::Signature));
        assert_eq!(check.claims("nonsense"), Err(BadGrant::Parts));
    }

    #[test]
    fn a_key_of_another_kind_is_refused() {
        assert!(GrantCheck::from_pem("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n").is_err());
    }
}

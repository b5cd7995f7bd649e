//! Tokens that callers bring: verified by the keys that a policy names, once per token and while.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use foldhash::quality::RandomState;
use hashbrown::{HashMap, HashSet};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use parking_lot::RwLock;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::{Map, Value};
use tollgate_core::policy::{Facts, Jwt, Said, Tokens};
use tollgate_core::{Nanos, Timestamp};

use super::file::contents;
use super::running::PolicyError;

/// Vouches for JSON Web Tokens by the keys that a policy names (`identify: { jwt: ... }`).
///
/// A token is believed if one of the keys has signed it by an algorithm that is accepted for that very key, if it is from the
/// issuer and for the audience that the policy names, and if it is valid at the time of the decision: from `nbf` to `exp`, each
/// with a minute of grace for clocks that disagree. One without these times is valid for ever. All others are as good as none,
/// so the caller is told by the next source; a token that was made up gets nobody a fresh bucket.
///
/// * Public keys verify only signatures of their own kind (`RS`, `PS`, `ES`, `EdDSA`), and only the shared secret of
///   `secret_env` verifies those by a secret (`HS`): nobody can sign with a key that is public. `none` is no algorithm.
/// * A token is looked for in `Authorization: Bearer`, or in the header that the policy names. Two that are not the same are none.
/// * Texts, numbers and truth values are claims, all as text. Lists and maps are not, nor are numbers that are too large to be
///   told exactly.
/// * A token costs its signature once: up to 1,024 that were right are remembered, and apart from them as many that were wrong,
///   so that a flood of those pushes nobody out. Times are looked at whenever a token comes.
///
/// A limiter makes its own from its policy. To have others, give [`LimiterBuilder::tokens`](crate::LimiterBuilder::tokens).
///
/// ```
/// use tollgate::{Facts, JwtTokens, Policy, Timestamp, Tokens};
///
/// // The key and the token of RFC 7515, A.3.
/// # let folder = std::env::temp_dir().join(format!("tollgate-doc-tokens-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let keys = r#"{ "keys": [{ "kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
///     "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0" }] }"#;
/// std::fs::write(folder.join("keys.json"), keys).unwrap();
/// let (policy, _) = Policy::read(
///     "identify: { caller: [jwt: iss], jwt: { jwks_file: keys.json } }
/// limiters: { request-rate: { rate: 50/s } }",
/// )?;
/// let tokens = JwtTokens::from_policy(policy.jwt().unwrap(), &folder)?;
/// let headers = [(
///     "authorization",
///     "Bearer eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVl\
///      fQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
/// )];
/// let facts = Facts { headers: &headers, ..Facts::default() };
/// assert_eq!(tokens.claim(&facts, "iss", Timestamp::from_secs(1_300_819_379)).as_deref(), Some("joe"));
/// assert_eq!(tokens.claim(&facts, "iss", Timestamp::from_secs(1_700_000_000)), None, "it has expired");
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
pub struct JwtTokens {
    keys: Vec<Key>,
    header: String,
    issuer: Option<String>,
    audience: Option<String>,
    known: Known,
}

/// Clocks of those who issue tokens may be off by this much.
const GRACE: Nanos = Nanos::from_secs(60);
/// Bytes of a token. Most servers accept no longer headers.
const LONGEST: usize = 16 << 10;
/// Bytes of a file with keys.
const LARGEST: u64 = 1 << 20;
/// Keys that a token is tried with, if it does not tell its own.
const TRIES: usize = 4;

/// A key, and what it may be used for.
struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    material: Material,
}

enum Material {
    Secret(Vec<u8>),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// A point of P-256 or P-384: which, its length tells.
    Point(Vec<u8>),
    Edwards(Vec<u8>),
}

impl JwtTokens {
    /// Reads the keys that a policy names. Files are looked for in `base` unless their paths begin at the root.
    pub fn from_policy(jwt: &Jwt, base: &Path) -> Result<Self, PolicyError> {
        Ok(Self {
            keys: keys(jwt, base).map_err(PolicyError::Tokens)?,
            header: jwt.header.clone().unwrap_or_else(|| AUTHORIZATION.to_owned()),
            issuer: jwt.issuer.clone(),
            audience: jwt.audience.clone(),
            known: Known::default(),
        })
    }

    /// The token of a request, as it came.
    fn token<'f>(&self, facts: &Facts<'f>) -> Option<&'f str> {
        let Said::One(value) = facts.said(&self.header) else { return None };
        let value = std::str::from_utf8(value).ok()?;
        // Servers take any white space for one.
        let bearer = value
            .split_once([' ', '\t'])
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim_start());
        let is_usual = self.header.eq_ignore_ascii_case(AUTHORIZATION);
        bearer.or((!is_usual).then_some(value)).filter(|token| token.len() <= LONGEST)
    }

    /// What a token says, if one of the keys has signed it and it is for us. Its times are for later.
    fn verified(&self, token: &str) -> Option<Verified> {
        let (message, signature) = token.rsplit_once('.')?;
        let (_, payload) = message.split_once('.')?;
        let header = jsonwebtoken::decode_header(token).ok()?;
        // What must be understood is not understood here.
        if header.crit.is_some() {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let id = header.kid.as_deref();
        let is_known = self.keys.iter().any(|key| key.id.as_deref() == id);
        let is_meant = |key: &&Key| match id {
            Some(_) if is_known => key.id.as_deref() == id,
            Some(_) => key.id.is_none(),
            None => true,
        };
        let fitting = self.keys.iter().filter(|key| key.algorithms.contains(&header.alg));
        let mut tried = fitting.filter(is_meant).take(TRIES);
        if !tried.any(|key| key.material.verifies(header.alg, message.as_bytes(), &signature)) {
            return None;
        }
        let claims: Map<String, Value> =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        (self.is_from_issuer(&claims) && self.is_for_audience(&claims)).then_some(())?;
        Verified::new(claims)
    }

    fn is_from_issuer(&self, claims: &Map<String, Value>) -> bool {
        let said = claims.get("iss").and_then(Value::as_str);
        self.issuer.as_deref().is_none_or(|issuer| said == Some(issuer))
    }

    fn is_for_audience(&self, claims: &Map<String, Value>) -> bool {
        let Some(audience) = self.audience.as_deref() else { return true };
        match claims.get("aud") {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(several)) => several.iter().any(|one| one.as_str() == Some(audience)),
            _ => false,
        }
    }
}

const AUTHORIZATION: &str = "authorization";

impl Tokens for JwtTokens {
    fn claim(&self, facts: &Facts<'_>, claim: &str, now: Timestamp) -> Option<String> {
        let token = self.token(facts)?;
        let verified = self.known.get_or(token, now, || self.verified(token))?;
        verified.is_valid(now).then(|| verified.claim(claim)).flatten()
    }

    fn has_several(&self, facts: &Facts<'_>) -> bool {
        facts.said(&self.header) == Said::Several
    }
}

impl fmt::Debug for JwtTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtTokens").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

/// What a token says that was signed by one of the keys.
struct Verified {
    from: Timestamp,
    until: Option<Timestamp>,
    claims: Vec<(String, String)>,
}

impl Verified {
    fn new(claims: Map<String, Value>) -> Option<Self> {
        let time = |name: &str| claims.get(name).map(|value| time(value).ok_or(())).transpose().ok();
        let (from, until) = (time("nbf")?.unwrap_or(Timestamp::ZERO), time("exp")?);
        let claims = claims.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect();
        Some(Self { from, until: until.map(|until| until + GRACE), claims })
    }

    fn is_valid(&self, now: Timestamp) -> bool {
        self.from <= now + GRACE && !self.has_expired(now)
    }

    fn has_expired(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    fn claim(&self, name: &str) -> Option<String> {
        self.claims.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
    }
}

/// Seconds since 1970, whole or not. What is before is at the beginning, what is too far ahead at the end of time.
fn time(value: &Value) -> Option<Timestamp> {
    match (value.as_u64(), value.as_f64()) {
        (Some(seconds), _) => Some(Timestamp::from_secs(seconds)),
        (None, Some(seconds)) => Some(Timestamp::from_nanos((seconds * 1e9) as u64)),
        _ => None,
    }
}

/// A claim as text, if it is one value that can be told exactly.
fn text(value: Value) -> Option<String> {
    /// From here on a number may stand for several.
    const INEXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::String(text) => Some(text),
        Value::Bool(is) => Some(is.to_string()),
        Value::Number(number) if number.is_f64() && number.as_f64().is_none_or(|n| n.abs() >= INEXACT) => {
            None
        }
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Tokens that have come before, by their digests: what callers can log in with is not kept.
struct Known {
    shards: [RwLock<Shard>; SHARDS],
}

/// Right and wrong ones have rooms of their own: however many are made up, they push out nobody who is real.
#[derive(Default)]
struct Shard {
    right: HashMap<[u8; 32], Arc<Verified>, RandomState>,
    wrong: HashSet<[u8; 32], RandomState>,
}

const SHARDS: usize = 16;
/// Tokens in each room of a shard.
const ROOM: usize = 64;

impl Default for Known {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

impl Known {
    fn get_or(
        &self,
        token: &str,
        now: Timestamp,
        verify: impl FnOnce() -> Option<Verified>,
    ) -> Option<Arc<Verified>> {
        let digest = digest(&SHA256, token.as_bytes());
        let digest: [u8; 32] = digest.as_ref().try_into().ok()?;
        let [first, ..] = digest;
        let shard = self.shards.get(usize::from(first) % SHARDS)?;
        let known = shard.read();
        if let Some(verified) = known.right.get(&digest) {
            return Some(Arc::clone(verified));
        }
        if known.wrong.contains(&digest) {
            return None;
        }
        drop(known);
        let verified = verify().map(Arc::new);
        let Shard { right, wrong } = &mut *shard.write();
        match &verified {
            Some(verified) => {
                if right.len() >= ROOM {
                    right.retain(|_, known| !known.has_expired(now));
                }
                if right.len() >= ROOM {
                    right.clear();
                }
                right.insert(digest, Arc::clone(verified));
            }
            None => {
                if wrong.len() >= ROOM {
                    wrong.clear();
                }
                wrong.insert(digest);
            }
        }
        verified
    }
}

/// All keys that a policy names; or in words why they are of no use.
fn keys(jwt: &Jwt, base: &Path) -> Result<Vec<Key>, String> {
    let accepted: Vec<Algorithm> = jwt
        .algorithms
        .iter()
        .map(|name| name.parse().map_err(|_| format!("{name:?} is no algorithm that is known here")))
        .collect::<Result<_, _>>()?;
    match (&jwt.key_file, &jwt.jwks_file, &jwt.secret_env) {
        (Some(file), None, None) => Ok(vec![pem_key(&base.join(file), accepted)?]),
        (None, Some(file), None) => jwks_keys(&base.join(file), &accepted),
        (None, None, Some(variable)) => Ok(vec![secret(variable, accepted)?]),
        _ => Err("they are by one of `key_file`, `jwks_file` and `secret_env`".to_owned()),
    }
}

fn secret(variable: &str, mut algorithms: Vec<Algorithm>) -> Result<Key, String> {
    if algorithms.is_empty() {
        algorithms = AlgorithmFamily::Hmac.algorithms().to_vec();
    }
    let secret = std::env::var_os(variable).ok_or_else(|| {
        format!("the variable {variable} of the environment, which holds the secret, is not set")
    })?;
    let secret = secret.into_encoded_bytes();
    if secret.trim_ascii().is_empty() {
        return Err(format!("the variable {variable} of the environment, which holds the secret, is empty"));
    }
    let key = Key { id: None, material: Material::Secret(secret), algorithms };
    match key.algorithms.iter().find(|algorithm| !key.material.fits(**algorithm)) {
        Some(other) => {
            Err(format!("{other:?} needs a public key (`key_file` or `jwks_file`), and there is a secret"))
        }
        None => Ok(key),
    }
}

fn pem_key(path: &Path, algorithms: Vec<Algorithm>) -> Result<Key, String> {
    let shown = path.display();
    let pem = contents(path, LARGEST).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    if String::from_utf8_lossy(&pem).contains("PRIVATE KEY-----") {
        return Err(format!(
            "{shown} holds a private key, which nobody needs to verify: give the public one"
        ));
    }
    let first = *algorithms.first().ok_or_else(|| format!("which `algorithms` is {shown} for?"))?;
    let (kind, key) = match first.family() {
        AlgorithmFamily::Rsa => ("an RSA key of 2048 to 8192 bits", DecodingKey::from_rsa_pem(&pem)),
        AlgorithmFamily::Ec => ("a key on the curve P-256 or P-384", DecodingKey::from_ec_pem(&pem)),
        AlgorithmFamily::Ed => ("an Ed25519 key", DecodingKey::from_ed_pem(&pem)),
        AlgorithmFamily::Hmac => {
            return Err(format!("{first:?} needs a shared secret (`secret_env`), and there is a public key"));
        }
    };
    let material = key.ok().and_then(|key| Material::public(&key));
    let material =
        material.ok_or_else(|| format!("{shown} does not hold {kind} (PEM), which {first:?} needs"))?;
    match algorithms.iter().find(|algorithm| !material.fits(**algorithm)) {
        Some(other) => Err(format!("{other:?} needs another kind of key than there is in {shown}")),
        None => Ok(Key { id: None, algorithms, material }),
    }
}

fn jwks_keys(path: &Path, accepted: &[Algorithm]) -> Result<Vec<Key>, String> {
    let shown = path.display();
    let json = contents(path, LARGEST).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let set: JwkSet = serde_json::from_slice(&json)
        .map_err(|error| format!("{shown} is no set of keys (JWKS): {error}"))?;
    let keys: Vec<Key> = set.keys.iter().filter_map(|jwk| jwk_key(jwk, accepted)).collect();
    if keys.is_empty() {
        let accepted =
            accepted.iter().map(|algorithm| format!("{algorithm:?}")).collect::<Vec<_>>().join(", ");
        let of = if accepted.is_empty() { "RSA, P-256, P-384 or Ed25519" } else { &accepted };
        return Err(format!(
            "none of the {} keys in {shown} is a public one for signatures by {of}",
            set.keys.len()
        ));
    }
    Ok(keys)
}

/// A key of a set. Others may be for encryption, or of kinds that are not known here.
fn jwk_key(jwk: &Jwk, accepted: &[Algorithm]) -> Option<Key> {
    let common = &jwk.common;
    let is_for_signatures =
        !matches!(&common.public_key_use, Some(other) if *other != PublicKeyUse::Signature);
    let verifies = common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
    let is_known = match &jwk.algorithm {
        AlgorithmParameters::EllipticCurve(of) => {
            matches!(of.curve, EllipticCurve::P256 | EllipticCurve::P384)
        }
        AlgorithmParameters::OctetKeyPair(of) => of.curve == EllipticCurve::Ed25519,
        AlgorithmParameters::RSA(_) => true,
        // A secret in a file that is made to be published is none.
        _ => false,
    };
    if !(is_for_signatures && verifies && is_known) {
        return None;
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    let material = Material::public(&key)?;
    let algorithms: Vec<Algorithm> = match common.key_algorithm {
        Some(one) => vec![Algorithm::try_from(one).ok()?],
        None => key.family().algorithms().to_vec(),
    };
    let is_accepted = |algorithm: &Algorithm| accepted.is_empty() || accepted.contains(algorithm);
    let algorithms: Vec<Algorithm> =
        algorithms.into_iter().filter(|one| material.fits(*one) && is_accepted(one)).collect();
    (!algorithms.is_empty()).then(|| Key { id: common.key_id.clone(), algorithms, material })
}

impl Material {
    /// A public key, if it is a sound one.
    fn public(key: &DecodingKey) -> Option<Self> {
        match (key.family(), key.kind()) {
            (AlgorithmFamily::Rsa, DecodingKeyKind::RsaModulusExponent { n, e }) => rsa(n, e),
            (AlgorithmFamily::Rsa, DecodingKeyKind::SecretOrDer(der)) => {
                let (sequence, _) = der_value(der, 0x30)?;
                let (n, rest) = der_value(sequence, 0x02)?;
                let (e, _) = der_value(rest, 0x02)?;
                rsa(n, e)
            }
            (AlgorithmFamily::Ec, DecodingKeyKind::SecretOrDer(point)) => {
                let is_point = matches!(point.len(), P256 | P384) && point.first() == Some(&4);
                is_point.then(|| Self::Point(point.clone()))
            }
            (AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(key)) => {
                (key.len() == 32).then(|| Self::Edwards(key.clone()))
            }
            _ => None,
        }
    }

    /// Whether it is of the kind that an algorithm needs. A public key never is for one that needs a secret.
    fn fits(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::Secret(_) => algorithm.family() == AlgorithmFamily::Hmac,
            Self::Rsa(_) => algorithm.family() == AlgorithmFamily::Rsa,
            Self::Point(point) => match algorithm {
                Algorithm::ES256 => point.len() == P256,
                Algorithm::ES384 => point.len() == P384,
                _ => false,
            },
            Self::Edwards(_) => algorithm == Algorithm::EdDSA,
        }
    }

    fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        use Algorithm::*;
        let verified = match (self, algorithm) {
            (Self::Secret(secret), HS256 | HS384 | HS512) => {
                let kind = match algorithm {
                    HS256 => hmac::HMAC_SHA256,
                    HS384 => hmac::HMAC_SHA384,
                    _ => hmac::HMAC_SHA512,
                };
                hmac::verify(&hmac::Key::new(kind, secret), message, signature)
            }
            (Self::Rsa(key), _) => {
                let kind = match algorithm {
                    RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    PS256 => &signature::RSA_PSS_2048_8192_SHA256,
                    PS384 => &signature::RSA_PSS_2048_8192_SHA384,
                    PS512 => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                key.verify(kind, message, signature)
            }
            (Self::Point(point), ES256) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Self::Point(point), ES384) => {
                UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point).verify(message, signature)
            }
            (Self::Edwards(key), EdDSA) => {
                UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature)
            }
            _ => return false,
        };
        verified.is_ok()
    }
}

/// Bytes of points on curves.
const P256: usize = 65;
const P384: usize = 97;

/// A key of 2048 to 8192 bits.
fn rsa(n: &[u8], e: &[u8]) -> Option<Material> {
    let plain = |number: &[u8]| number.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
    let (n, e) = (plain(n), plain(e));
    let is_sound = (256..=1024).contains(&n.len()) && (1..=4).contains(&e.len()) && e != [1];
    is_sound.then_some(Material::Rsa(RsaPublicKeyComponents { n, e }))
}

/// The first value of a DER text, if it is of a kind, and what comes after it.
fn der_value(der: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = der.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    (*first == kind).then(|| rest.split_at_checked(length))?
}

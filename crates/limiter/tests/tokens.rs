//! Tokens: whom a limiter believes, and whom it does not.

#![cfg(feature = "jwt")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::time::Duration;

use crate::common::folder::Folder;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPairComponents, PublicKeyComponents};
use ring::signature::{self as sign, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
use serde_json::{Value, json};
use tollgate::core::policy::Jwt;
use tollgate::{Facts, JwtTokens, Limiter, ManualClock, PolicyError, Timestamp, Tokens};

/// Seconds; a day in 2023.
const NOW: u64 = 1_700_000_000;
/// A variable that cargo sets for every test; its value is the secret here.
const SECRET: &str = "CARGO_PKG_DESCRIPTION";

fn now() -> Timestamp {
    Timestamp::from_secs(NOW)
}

/// Somebody who issues tokens.
enum Issuer {
    Secret(Vec<u8>),
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Edwards(Ed25519KeyPair),
}

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    fn secret() -> Self {
        Self::Secret(std::env::var(SECRET).unwrap().into_bytes())
    }

    /// The key of RFC 7515, A.2: ring cannot make new ones.
    fn rsa() -> Self {
        let part = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
        let components = KeyPairComponents {
            public_key: PublicKeyComponents { n: part(RSA_N), e: part("AQAB") },
            d: part(
                "Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgvfTeXZx9SE-7YwVol2NXOoAJe46sui395IW_GO\
                 -pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4qAdGcopV_0ZHHzQlBjud\
                 U2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB4cS98l2SR_RQyGWSeWjnczT0QU91p1D\
                 hOVRuOopznQ",
            ),
            p: part(
                "4BzEEOtIpmVdVEZNCqS7baC4crd0pqnRH_5IB3jw3bcxGn6QLvnEtfdUdiYrqBdss1l58BQ3KhooKeQTa9AB0Hw_Py5PJdTJNPY8cQn7ouZ2KK\
                 DcmnPGBY5t7yLc1QlQ5xHdwW1VhvKn-nXqhJTBgIPgtldC-KDV5z-y2XDwGUc",
            ),
            q: part(
                "uQPEfgmVtjL0Uyyx88GZFF1fOunH3-7cepKmtH4pxhtCoHqpWmT8YAmZxaewHgHAjLYsp1ZSe7zFYHj7C6ul7TjeLQeZD_YwD66t62wDmpe_Hl\
                 B-TnBA-njbglfIsRLtXlnDzQkv5dTltRJ11BKBBypeeF6689rjcJIDEz9RWdc",
            ),
            dP: part(
                "BwKfV3Akq5_MFZDFZCnW-wzl-CCo83WoZvnLQwCTeDv8uzluRSnm71I3QCLdhrqE2e9YkxvuxdBfpT_PI7Yz-FOKnu1R6HsJeDCjn12Sk3vmAk\
                 tV2zb34MCdy7cpdTh_YVr7tss2u6vneTwrA86rZtu5Mbr1C1XsmvkxHQAdYo0",
            ),
            dQ: part(
                "h_96-mK1R_7glhsum81dZxjTnYynPbZpHziZjeeHcXYsXaaMwkOlODsWa7I9xXDoRwbKgB719rrmI2oKr6N3Do9U0ajaHF-NKJnwgjMd2w9cjz3\
                 _-kyNlxAr2v4IKhGNpmM5iIgOS1VZnOZ68m6_pbLBSp3nssTdlqvd0tIiTHU",
            ),
            qInv: part(
                "IYd7DHOhrWvxkwPQsRM2tOgrjbcrfvtQJipd-DlcxyVuuM9sQLdgjVk2oy26F0EmpScGLq2MowX7fhd_QJQ3ydy5cY7YIBi87w93IKLEdfnbJt\
                 oOPLUW0ITrJReOgo1cq9SbsxYawBgfp_gh6A5603k2-ZQwVK0JKSHuLFkuQ3U",
            ),
        };
        Self::Rsa(Box::new(RsaKeyPair::from_components(&components).unwrap()))
    }

    fn p256() -> Self {
        Self::P256(ecdsa(&sign::ECDSA_P256_SHA256_FIXED_SIGNING))
    }

    fn p384() -> Self {
        Self::P384(ecdsa(&sign::ECDSA_P384_SHA384_FIXED_SIGNING))
    }

    fn edwards() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Edwards(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    fn public(&self) -> &[u8] {
        match self {
            Self::Secret(secret) => secret,
            Self::Rsa(pair) => pair.public_key().as_ref(),
            Self::P256(pair) | Self::P384(pair) => pair.public_key().as_ref(),
            Self::Edwards(pair) => pair.public_key().as_ref(),
        }
    }

    /// The public key as others write it.
    fn pem(&self) -> String {
        let before: &[u8] = match self {
            Self::Rsa(_) => {
                b"\x30\x82\x01\x22\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00\x03\x82\x01\x0f\x00"
            }
            Self::P256(_) => {
                b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00"
            }
            Self::P384(_) => {
                b"\x30\x76\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22\x03\x62\x00"
            }
            Self::Edwards(_) => b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00",
            Self::Secret(_) => panic!("a secret has no public key"),
        };
        pem("PUBLIC KEY", &[before, self.public()].concat())
    }

    fn jwk(&self) -> Value {
        match self {
            Self::Secret(secret) => json!({ "kty": "oct", "k": b64(secret) }),
            Self::Rsa(_) => json!({ "kty": "RSA", "n": RSA_N, "e": "AQAB" }),
            Self::P256(_) | Self::P384(_) => {
                let (x, y) = self.public()[1..].split_at((self.public().len() - 1) / 2);
                let curve = if x.len() == 32 { "P-256" } else { "P-384" };
                json!({ "kty": "EC", "crv": curve, "x": b64(x), "y": b64(y) })
            }
            Self::Edwards(_) => json!({ "kty": "OKP", "crv": "Ed25519", "x": b64(self.public()) }),
        }
    }

    fn signature(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Secret(secret) => {
                let kind = match algorithm {
                    "HS384" => ring::hmac::HMAC_SHA384,
                    "HS512" => ring::hmac::HMAC_SHA512,
                    _ => ring::hmac::HMAC_SHA256,
                };
                ring::hmac::sign(&ring::hmac::Key::new(kind, secret), message).as_ref().to_vec()
            }
            Self::Rsa(pair) => {
                let kind: &dyn sign::RsaEncoding = match algorithm {
                    "RS384" => &sign::RSA_PKCS1_SHA384,
                    "RS512" => &sign::RSA_PKCS1_SHA512,
                    "PS256" => &sign::RSA_PSS_SHA256,
                    "PS384" => &sign::RSA_PSS_SHA384,
                    "PS512" => &sign::RSA_PSS_SHA512,
                    _ => &sign::RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(kind, &random, message, &mut signature).unwrap();
                signature
            }
            Self::P256(pair) | Self::P384(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Edwards(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = self.signature(header["alg"].as_str().unwrap_or_default(), message.as_bytes());
        format!("{message}.{}", b64(signature))
    }

    fn token(&self, algorithm: &str, claims: &Value) -> String {
        self.token_with(&json!({ "alg": algorithm, "typ": "JWT" }), claims)
    }
}

const RSA_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2\
                     lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBE\
                     Ma2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2\
                     PAcDTW9gb54h4FRWyuXpoQ";

fn ecdsa(kind: &'static sign::EcdsaSigningAlgorithm) -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(kind, pkcs8.as_ref(), &random).unwrap()
}

fn pem(tag: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {tag}-----\n{}\n-----END {tag}-----\n", lines.join("\n"))
}

/// Tokens that are verified by a key of an issuer's, for some algorithms.
fn by_key(issuer: &Issuer, algorithms: &[&str]) -> JwtTokens {
    let folder = Folder::new();
    folder.write("key.pem", issuer.pem());
    JwtTokens::from_policy(&key_file(algorithms), folder.path()).unwrap()
}

fn key_file(algorithms: &[&str]) -> Jwt {
    Jwt { key_file: Some("key.pem".to_owned()), algorithms: names(algorithms), ..Jwt::default() }
}

fn by_secret() -> JwtTokens {
    let jwt = Jwt { secret_env: Some(SECRET.to_owned()), ..Jwt::default() };
    JwtTokens::from_policy(&jwt, "".as_ref()).unwrap()
}

fn by_jwks(keys: &[Value]) -> Result<JwtTokens, PolicyError> {
    let folder = Folder::new();
    folder.write("keys.json", json!({ "keys": keys }).to_string());
    let jwt = Jwt { jwks_file: Some("keys.json".to_owned()), ..Jwt::default() };
    JwtTokens::from_policy(&jwt, folder.path())
}

fn names(algorithms: &[&str]) -> Vec<String> {
    algorithms.iter().map(|name| (*name).to_owned()).collect()
}

fn claim_at(tokens: &JwtTokens, token: &str, claim: &str, at: Timestamp) -> Option<String> {
    let value = format!("Bearer {token}");
    let headers = [("Authorization", &value)];
    tokens.claim(&Facts { headers: &headers, ..Facts::default() }, claim, at)
}

fn sub(tokens: &JwtTokens, token: &str) -> Option<String> {
    claim_at(tokens, token, "sub", now())
}

fn alice() -> Value {
    json!({ "sub": "alice", "exp": NOW + 3600 })
}

#[test]
fn tokens_of_every_algorithm_are_believed() {
    let issuers: [(Issuer, &[&str]); 5] = [
        (Issuer::secret(), &["HS256", "HS384", "HS512"]),
        (Issuer::rsa(), &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]),
        (Issuer::p256(), &["ES256"]),
        (Issuer::p384(), &["ES384"]),
        (Issuer::edwards(), &["EdDSA"]),
    ];
    for (issuer, algorithms) in &issuers {
        for algorithm in *algorithms {
            let token = issuer.token(algorithm, &alice());
            let mut all = match issuer {
                Issuer::Secret(_) => vec![by_secret()],
                _ => vec![by_key(issuer, algorithms), by_jwks(&[issuer.jwk()]).unwrap()],
            };
            let mut named = issuer.jwk();
            named["alg"] = json!(algorithm);
            all.extend((!matches!(issuer, Issuer::Secret(_))).then(|| by_jwks(&[named]).unwrap()));
            for tokens in all {
                assert_eq!(sub(&tokens, &token).as_deref(), Some("alice"), "{algorithm}");
                assert_eq!(sub(&tokens, &token).as_deref(), Some("alice"), "{algorithm}, remembered");
            }
        }
    }
}

/// What others have signed: RFC 7515, A.2 and A.3.
#[test]
fn tokens_of_the_standard_are_believed() {
    const CLAIMS: &str =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let rsa = format!(
        "eyJhbGciOiJSUzI1NiJ9.{CLAIMS}.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2F\
         p5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383\
         LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN\
         _IoypGlUPQGe77Rw"
    );
    let point = format!(
        "eyJhbGciOiJFUzI1NiJ9.{CLAIMS}.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
    );
    let tokens = by_jwks(&[
        json!({ "kty": "RSA", "n": RSA_N, "e": "AQAB" }),
        json!({ "kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
                "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0" }),
    ])
    .unwrap();
    for token in [rsa, point] {
        let claim = |claim, at| claim_at(&tokens, &token, claim, Timestamp::from_secs(at));
        assert_eq!(claim("iss", 1_300_819_379).as_deref(), Some("joe"));
        assert_eq!(claim("http://example.com/is_root", 1_300_819_379).as_deref(), Some("true"));
        assert_eq!(claim("iss", NOW), None, "that was long ago");
    }
}

#[test]
fn times_count_by_the_clock_of_the_decision_with_a_minute_of_grace() {
    let (tokens, issuer) = (by_secret(), Issuer::secret());
    let at = |token: &str, seconds: u64| {
        let first = claim_at(&tokens, token, "sub", Timestamp::from_secs(seconds)).is_some();
        let again = claim_at(&tokens, token, "sub", Timestamp::from_secs(seconds)).is_some();
        assert_eq!(first, again, "whether or not it is remembered");
        first
    };
    let token = issuer.token("HS256", &json!({ "sub": "a", "nbf": 1000, "exp": 2000 }));
    assert_eq!(
        [0, 939, 940, 1500, 2059, 2060, NOW].map(|seconds| at(&token, seconds)),
        [false, false, true, true, true, false, false]
    );
    // Backwards, too: what was remembered as expired is valid when the clock says so.
    assert!(at(&token, 1500));
    let token = issuer.token("HS256", &json!({ "sub": "a", "exp": 1000.5 }));
    assert!(claim_at(&tokens, &token, "sub", Timestamp::from_millis(1_060_499)).is_some());
    assert!(claim_at(&tokens, &token, "sub", Timestamp::from_millis(1_060_500)).is_none());
    let forever = issuer.token("HS256", &json!({ "sub": "a" }));
    assert!(at(&forever, 0) && at(&forever, u64::MAX / 1_000_000_000));
    let far = issuer.token("HS256", &json!({ "sub": "a", "exp": u64::MAX }));
    assert!(at(&far, NOW));
    for wrong in [json!("2000000000"), json!(null), json!([NOW + 60]), json!(true), json!(-1), json!({})] {
        assert!(!at(&issuer.token("HS256", &json!({ "sub": "a", "exp": wrong })), NOW), "exp: {wrong}");
    }
    for wrong in [json!("0"), json!(null), json!(1e300)] {
        assert!(!at(&issuer.token("HS256", &json!({ "sub": "a", "nbf": wrong })), NOW), "nbf: {wrong}");
    }
}

#[test]
fn claims_are_told_as_text_or_not_at_all() {
    let (tokens, issuer) = (by_secret(), Issuer::secret());
    let token = issuer.token(
        "HS256",
        &json!({ "text": "ünï", "number": 42, "negative": -7, "part": 1.5, "huge": 1e20, "yes": true, "no": false,
                 "null": null, "list": ["a"], "map": { "a": 1 }, "blank": "" }),
    );
    let claim = |name| claim_at(&tokens, &token, name, now());
    let told = ["text", "number", "negative", "part", "yes", "no", "blank"].map(claim);
    assert_eq!(told.map(Option::unwrap), ["ünï", "42", "-7", "1.5", "true", "false", ""]);
    assert_eq!(["huge", "null", "list", "map", "missing", ""].map(claim), [const { None }; 6]);
    // Two names that a reader would take for the same number.
    let large = |digits: &str| {
        let message = format!("{}.{}", b64(r#"{"alg":"HS256"}"#), b64(format!(r#"{{"sub":{digits}}}"#)));
        let token = format!("{message}.{}", b64(issuer.signature("HS256", message.as_bytes())));
        sub(&tokens, &token)
    };
    assert_eq!(large("18446744073709551615").as_deref(), Some("18446744073709551615"));
    assert_eq!(large("100000000000000000001"), None);
}

#[test]
fn issuer_and_audience_must_be_those_of_the_policy() {
    let jwt = Jwt {
        secret_env: Some(SECRET.to_owned()),
        issuer: Some("us".to_owned()),
        audience: Some("api".to_owned()),
        ..Jwt::default()
    };
    let tokens = JwtTokens::from_policy(&jwt, "".as_ref()).unwrap();
    let is_believed = |iss: Value, aud: Value| {
        let mut claims = json!({ "sub": "a" });
        for (name, value) in [("iss", iss), ("aud", aud)] {
            if !value.is_null() {
                claims[name] = value;
            }
        }
        sub(&tokens, &Issuer::secret().token("HS256", &claims)).is_some()
    };
    assert!(is_believed(json!("us"), json!("api")));
    assert!(is_believed(json!("us"), json!(["web", "api"])));
    for (iss, aud) in [
        (json!("them"), json!("api")),
        (json!(null), json!("api")),
        (json!(["us"]), json!("api")),
        (json!("us"), json!("web")),
        (json!("us"), json!(null)),
        (json!("us"), json!([])),
        (json!("us"), json!([["api"]])),
        (json!("US"), json!("api")),
    ] {
        assert!(!is_believed(iss.clone(), aud.clone()), "{iss} {aud}");
    }
}

#[test]
fn what_is_forged_is_as_good_as_nothing() {
    let rsa = Issuer::rsa();
    let tokens = by_key(&rsa, &["RS256"]);
    let right = rsa.token("RS256", &alice());
    assert!(sub(&tokens, &right).is_some());

    // Signed with the public key as if it were a secret, in every form in which it is public.
    for public in [rsa.pem().into_bytes(), rsa.pem().trim().as_bytes().to_vec(), rsa.public().to_vec()] {
        for algorithm in ["HS256", "HS384", "HS512"] {
            let forged = Issuer::Secret(public.clone()).token(algorithm, &alice());
            assert_eq!(sub(&tokens, &forged), None);
            assert_eq!(sub(&by_jwks(&[rsa.jwk()]).unwrap(), &forged), None);
        }
    }
    // An algorithm that the key could do and the policy does not accept; one that is none; one that nobody knows.
    assert_eq!(sub(&tokens, &rsa.token("RS512", &alice())), None);
    assert_eq!(sub(&tokens, &rsa.token("PS256", &alice())), None);
    let (head, rest) = right.split_once('.').unwrap();
    for algorithm in ["none", "None", "NONE", "", "HS256", "ES256", "EdDSA", "RS256 "] {
        let other = b64(json!({ "alg": algorithm }).to_string());
        let (claims, signature) = rest.split_once('.').unwrap();
        for signature in [signature, "", "AAAA"] {
            assert_eq!(sub(&tokens, &format!("{other}.{claims}.{signature}")), None, "{algorithm}");
        }
    }
    // Somebody else's key, and other claims under the right signature.
    let other = by_key(&Issuer::p256(), &["ES256"]);
    assert_eq!(sub(&other, &Issuer::p256().token("ES256", &alice())), None);
    let (_, signature) = rest.split_once('.').unwrap();
    let claims = b64(json!({ "sub": "root" }).to_string());
    assert_eq!(sub(&tokens, &format!("{head}.{claims}.{signature}")), None);
    // A token that brings its own key, one that asks for what nobody here understands.
    let thief = Issuer::edwards();
    for header in [
        json!({ "alg": "EdDSA", "jwk": thief.jwk() }),
        json!({ "alg": "EdDSA", "jku": "https://thief.example/keys.json" }),
    ] {
        assert_eq!(sub(&by_key(&Issuer::edwards(), &["EdDSA"]), &thief.token_with(&header, &alice())), None);
    }
    let critical = json!({ "alg": "RS256", "crit": ["b64"], "b64": false });
    assert_eq!(sub(&tokens, &rsa.token_with(&critical, &alice())), None);
    // Shapes that are none.
    for shape in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "...".to_owned(),
        format!("{right}."),
        format!(".{right}"),
        format!("{right}="),
        format!("{right} {right}"),
        right.replace('.', ".."),
        format!("{head}.{rest}.{rest}"),
    ] {
        assert_eq!(sub(&tokens, &shape), None, "{shape}");
    }
}

#[test]
fn a_key_of_a_set_is_used_for_what_it_is_there_for() {
    let (first, second, third) = (Issuer::p256(), Issuer::p256(), Issuer::edwards());
    let with = |issuer: &Issuer, more: Value| {
        let mut jwk = issuer.jwk();
        jwk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        jwk
    };
    let tokens = by_jwks(&[
        with(&first, json!({ "kid": "1" })),
        with(&second, json!({ "kid": "2", "alg": "ES256", "use": "sig", "key_ops": ["verify"] })),
        third.jwk(),
        json!({ "kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA" }),
        json!({ "kty": "AKP", "alg": "ML-DSA-44", "pub": "AA" }),
        json!({ "kty": "RSA", "n": "AAAA", "e": "AQAB" }),
    ])
    .unwrap();
    let id = |issuer: &Issuer, algorithm: &str, kid: &str| {
        sub(&tokens, &issuer.token_with(&json!({ "alg": algorithm, "kid": kid }), &alice())).is_some()
    };
    assert!(id(&first, "ES256", "1") && id(&second, "ES256", "2"));
    assert!(!id(&first, "ES256", "2") && !id(&second, "ES256", "1"));
    assert!(!id(&first, "ES256", "3"), "no key is called 3");
    assert!(id(&third, "EdDSA", "3"), "but this one has no name");
    assert!(sub(&tokens, &second.token("ES256", &alice())).is_some(), "who names none is tried with all");

    // Secrets, keys for encryption, keys for other algorithms.
    let secret = Issuer::Secret(vec![7; 32]);
    for (useless, of) in [
        (secret.jwk(), &secret),
        (with(&secret, json!({ "alg": "HS256" })), &secret),
        (with(&first, json!({ "use": "enc" })), &first),
        (with(&first, json!({ "key_ops": ["sign"] })), &first),
        (with(&first, json!({ "alg": "ES384" })), &first),
        (with(&first, json!({ "alg": "HS256" })), &first),
        (with(&first, json!({ "alg": "ECDH-ES" })), &first),
    ] {
        let error = by_jwks(std::slice::from_ref(&useless)).unwrap_err().to_string();
        assert!(error.contains("none of the 1 keys") && error.contains("keys.json"), "{error}");
        let tokens = by_jwks(&[useless, third.jwk()]).unwrap();
        assert_eq!(sub(&tokens, &of.token("HS256", &alice())), None);
        assert_eq!(sub(&tokens, &of.token("ES256", &alice())), None);
    }
}

#[test]
fn a_token_is_found_where_the_policy_says() {
    let issuer = Issuer::secret();
    let token = issuer.token("HS256", &alice());
    let find = |header: Option<&str>, headers: &[(&str, &str)]| {
        let jwt =
            Jwt { secret_env: Some(SECRET.to_owned()), header: header.map(str::to_owned), ..Jwt::default() };
        let headers = headers.to_vec();
        JwtTokens::from_policy(&jwt, "".as_ref())
            .unwrap()
            .claim(&Facts { headers: &headers, ..Facts::default() }, "sub", now())
            .is_some()
    };
    let bearer = format!("Bearer {token}");
    for value in [&bearer, &format!("bearer {token}"), &format!("BEARER   {token} ")] {
        assert!(find(None, &[("authorization", value)]), "{value}");
        assert!(find(Some("Authorization"), &[("AUTHORIZATION", value)]), "{value}");
    }
    for value in [&token, &format!("Basic {token}"), &format!("Bearer{token}"), "Bearer", "Bearer ", ""] {
        assert!(!find(None, &[("authorization", value)]), "{value}");
    }
    // Found by a reader: what is one to servers was none here, and so a way past lists.
    assert!(find(None, &[("authorization", &bearer), ("authorization", &bearer)]), "the same twice is one");
    assert!(find(None, &[("authorization", &format!("Bearer\t{token}"))]), "a tab is a space");
    assert!(!find(None, &[("authorization", &bearer), ("authorization", "Bearer x")]), "several are none");
    assert!(find(Some("x-token"), &[("X-Token", &token), ("authorization", "Basic x")]));
    assert!(find(Some("x-token"), &[("x-token", &bearer)]));
    assert!(!find(Some("x-token"), &[("authorization", &bearer)]));
    let long = issuer.token("HS256", &json!({ "sub": "a", "pad": "x".repeat(20_000) }));
    assert!(!find(Some("x-token"), &[("x-token", &long)]), "no server takes such a header");
}

#[test]
fn keys_that_are_of_no_use_are_told_in_words() {
    let folder = Folder::new();
    let (rsa, point, edwards) = (Issuer::rsa(), Issuer::p256(), Issuer::edwards());
    folder.write("rsa.pem", rsa.pem());
    folder.write("old.pem", pem("RSA PUBLIC KEY", rsa.public()));
    folder.write("p256.pem", point.pem());
    folder.write("ed.pem", edwards.pem());
    folder.write("short.pem", pem("RSA PUBLIC KEY", b"\x30\x06\x02\x01\x0b\x02\x01\x03"));
    let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    folder.write("private.pem", pem("PRIVATE KEY", private.as_ref()));
    folder.write("garbage.pem", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n");
    folder.write("empty", "");
    folder.write("large", vec![b' '; 2 << 20]);
    let key = |file: &str, algorithms: &[&str]| {
        let jwt = Jwt { key_file: Some(file.to_owned()), algorithms: names(algorithms), ..Jwt::default() };
        JwtTokens::from_policy(&jwt, folder.path()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(key("rsa.pem", &["RS256", "PS512"]), Ok(()));
    assert_eq!(key("old.pem", &["RS256"]), Ok(()));
    assert_eq!(key("p256.pem", &["ES256"]), Ok(()));
    assert_eq!(key("ed.pem", &["EdDSA"]), Ok(()));
    for (file, algorithms, words) in [
        (
            "rsa.pem",
            &["ES256"][..],
            "rsa.pem does not hold a key on the curve P-256 or P-384 (PEM), which ES256 needs",
        ),
        ("p256.pem", &["RS256"], "p256.pem does not hold an RSA key"),
        ("p256.pem", &["EdDSA"], "p256.pem does not hold an Ed25519 key"),
        ("p256.pem", &["ES384"], "ES384 needs another kind of key"),
        ("rsa.pem", &["RS256", "EdDSA"], "EdDSA needs another kind of key"),
        ("rsa.pem", &["HS256"], "HS256 needs a shared secret"),
        ("rsa.pem", &["RS256", "HS256"], "HS256 needs another kind of key"),
        ("rsa.pem", &["none"], "\"none\" is no algorithm"),
        ("rsa.pem", &[], "which `algorithms` is"),
        ("short.pem", &["RS256"], "an RSA key of 2048 to 8192 bits"),
        ("private.pem", &["EdDSA"], "holds a private key"),
        ("garbage.pem", &["RS256"], "garbage.pem does not hold"),
        ("empty", &["RS256"], "empty does not hold"),
        ("large", &["RS256"], "2097152 bytes"),
        ("missing", &["RS256"], "missing cannot be read: No such file"),
        ("", &["RS256"], "it is a folder"),
    ] {
        let error = key(file, algorithms).unwrap_err();
        assert!(error.starts_with("tokens cannot be verified: ") && error.contains(words), "{error}");
    }
    let of = |jwt: Jwt| JwtTokens::from_policy(&jwt, folder.path()).unwrap_err().to_string();
    let set = |file: &str| of(Jwt { jwks_file: Some(file.to_owned()), ..Jwt::default() });
    assert!(set("rsa.pem").contains("rsa.pem is no set of keys (JWKS)"), "{}", set("rsa.pem"));
    assert!(set("empty").contains("empty is no set of keys (JWKS)"));
    folder.write("none.json", r#"{"keys":[]}"#);
    assert!(set("none.json").contains("none of the 0 keys"));
    let secret = |variable: &str, algorithms: &[&str]| {
        of(Jwt { secret_env: Some(variable.to_owned()), algorithms: names(algorithms), ..Jwt::default() })
    };
    assert!(
        secret("TOLLGATE_NO_SUCH_SECRET", &[])
            .contains("TOLLGATE_NO_SUCH_SECRET of the environment, which holds")
    );
    assert!(secret("TOLLGATE_NO_SUCH_SECRET", &[]).ends_with("is not set"));
    // Cargo sets this one and leaves it empty: the version is no beta.
    assert!(secret("CARGO_PKG_VERSION_PRE", &[]).ends_with("is empty"));
    assert!(secret(SECRET, &["RS256"]).contains("RS256 needs a public key"));
    assert!(of(Jwt::default()).contains("one of `key_file`, `jwks_file` and `secret_env`"));
}

fn policy(jwt: &str) -> String {
    format!(
        "identify: {{ caller: [jwt: sub, header: x-key, ip], plan: [jwt: plan], jwt: {jwt} }}
trusted_proxies: []
plans: {{ free: {{ rate: 2/min }}, paid: {{ rate: 5/min }} }}
limiters: {{ request-rate: {{ rate: plan }} }}"
    )
}

/// How many of ten requests pass.
fn passes(limiter: &Limiter, headers: &[(&str, String)]) -> usize {
    let headers = headers.to_vec();
    let facts = Facts { headers: &headers, peer: Some("192.0.2.1".parse().unwrap()), ..Facts::default() };
    (0..10).filter(|_| limiter.admit_now(&facts).is_ok()).count()
}

/// F 31 and its like: whatever is wrong with a token, it gets nobody a bucket of its own.
#[test]
fn a_limiter_takes_the_keys_of_its_policy_and_forged_tokens_share_a_bucket() {
    let folder = Folder::new();
    let issuer = Issuer::edwards();
    folder.write("key.pem", issuer.pem());
    folder.write("policy.yaml", policy("{ key_file: key.pem, algorithms: [EdDSA] }"));
    let clock = ManualClock::at(now());
    let limiter =
        Limiter::builder().policy_file(folder.file("policy.yaml")).clock(clock.clone()).build().unwrap();
    let bearer = |token: String| [("authorization", format!("Bearer {token}"))];
    let of = |name: &str, plan: &str| {
        bearer(issuer.token("EdDSA", &json!({ "sub": name, "plan": plan, "exp": NOW + 10 })))
    };
    assert_eq!(passes(&limiter, &of("alice", "paid")), 5);
    assert_eq!(passes(&limiter, &of("bob", "free")), 2);
    assert_eq!(passes(&limiter, &of("alice", "free")), 0, "another token, the same caller");
    // All of these are the address, which has two.
    let thief = Issuer::edwards();
    let forged =
        |name: usize| bearer(thief.token("EdDSA", &json!({ "sub": name.to_string(), "plan": "paid" })));
    assert_eq!((0..20).map(|name| passes(&limiter, &forged(name))).sum::<usize>(), 2);
    assert_eq!(passes(&limiter, &[]), 0);
    assert_eq!(passes(&limiter, &bearer("garbage".to_owned())), 0);
    clock.advance(Duration::from_secs(300));
    assert_eq!(passes(&limiter, &of("alice", "paid")), 2, "expired: the address again");
    assert_eq!(passes(&limiter, &[("x-key", "k".to_owned())]), 2, "the next source");
}

#[test]
fn keys_that_change_count_from_the_reload_on_and_bad_ones_change_nothing() {
    let folder = Folder::new();
    let (old, new) = (Issuer::edwards(), Issuer::p256());
    folder.write("key.pem", old.pem());
    let path = folder.file("policy.yaml");
    folder.write("policy.yaml", policy("{ key_file: key.pem, algorithms: [EdDSA] }"));
    let limiter = Limiter::load(&path).unwrap();
    let mut number = 0;
    let mut is_believed = |issuer: &Issuer, algorithm| {
        number += 1;
        let token = issuer.token(algorithm, &json!({ "sub": format!("caller {number}"), "plan": "paid" }));
        passes(&limiter, &[("authorization", format!("Bearer {token}"))]) == 5
    };
    assert!(is_believed(&old, "EdDSA"));
    // Another key, which does not fit: everything stays.
    folder.write("key.pem", new.pem());
    let error = limiter.reload_file(&path).unwrap_err();
    assert!(matches!(error, PolicyError::Tokens(_)), "{error}");
    assert!(limiter.report().reloads.error.unwrap().contains("does not hold an Ed25519 key"));
    assert!(is_believed(&old, "EdDSA") && !is_believed(&new, "ES256"));
    // A text has no folder of its own: files are beside the last one.
    limiter.reload_text(&policy("{ key_file: key.pem, algorithms: [ES256] }")).unwrap();
    assert!(is_believed(&new, "ES256") && !is_believed(&old, "EdDSA"));
    // Who was given goes before whom the policy names.
    limiter.set_tokens(tollgate::core::policy::NoTokens);
    limiter.reload_file(&path).unwrap();
    assert!(!is_believed(&new, "ES256") && !is_believed(&old, "EdDSA"));
}

/// A key file that is gone at start is loud, and lets everything pass if that is asked for.
#[test]
fn a_start_without_keys_is_loud_and_open() {
    let folder = Folder::new();
    folder.write("policy.yaml", policy("{ jwks_file: keys.json }"));
    let path = folder.file("policy.yaml");
    let error = Limiter::load(&path).unwrap_err().to_string();
    assert!(error.contains("keys.json cannot be read"), "{error}");
    let (limiter, wrong) = Limiter::builder().policy_file(&path).build_or_open().unwrap();
    assert_eq!(wrong.unwrap().to_string(), error);
    assert_eq!(passes(&limiter, &[]), 10);
    assert_eq!(limiter.report().reloads.error.as_deref(), Some(&*error));
    folder.write("keys.json", json!({ "keys": [Issuer::p384().jwk()] }).to_string());
    limiter.reload_file(&path).unwrap();
    assert_eq!(passes(&limiter, &[]), 2);
    assert_eq!(limiter.report().reloads.error, None);
}

/// More tokens than are remembered, from several threads: each is believed every time, and a flood of forged ones between them
/// changes nothing.
#[test]
fn many_tokens_are_believed_at_once() {
    let (tokens, issuer, thief) = (by_secret(), Issuer::secret(), Issuer::Secret(b"x".to_vec()));
    let of = |issuer: &Issuer, name: u32| issuer.token("HS256", &json!({ "sub": name.to_string() }));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (tokens, issuer, thief, of) = (&tokens, &issuer, &thief, &of);
            scope.spawn(move || {
                for number in 0..10_000_u32 {
                    let name = (number * 7 + thread) % 3000;
                    assert_eq!(sub(tokens, &of(issuer, name)), Some(name.to_string()));
                    assert_eq!(sub(tokens, &of(thief, name)), None);
                }
            });
        }
    });
}

/// Things that look like tokens more or less.
fn garbage() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[A-Za-z0-9_-]{0,40}",
        any::<Vec<u8>>().prop_map(b64),
        r#"\{"alg":"(HS256|RS256|ES256|EdDSA|none)"(,"kid":"[a-z]{0,3}")?\}"#.prop_map(b64),
        r#"\{"(sub|exp|nbf|aud|iss)":("a"|1|1e9|-1|null|\[\{\}\]|[0-9]{1,400})\}"#.prop_map(b64),
        "[\\[{]{200,2000}".prop_map(b64),
        ".{0,10}",
    ];
    prop_oneof![proptest::collection::vec(part, 0..5).prop_map(|parts| parts.join(".")), any::<String>(),]
}

proptest! {
    #![proptest_config(crate::common::config(2000))]

    #[test]
    fn garbage_is_never_believed_and_never_panics(token in garbage(), prefix in "(Bearer ?|bearer )?") {
        thread_local! {
            static ALL: [JwtTokens; 5] = [
                by_secret(),
                by_key(&Issuer::rsa(), &["RS256", "PS256"]),
                by_key(&Issuer::p256(), &["ES256"]),
                by_key(&Issuer::edwards(), &["EdDSA"]),
                by_jwks(&[Issuer::rsa().jwk(), Issuer::p384().jwk()]).unwrap(),
            ];
        }
        ALL.with(|all| {
            let value = format!("{prefix}{token}");
            let headers = [("authorization", value.as_bytes())];
            let facts = Facts { headers: &headers, ..Facts::default() };
            for (tokens, claim) in all.iter().flat_map(|tokens| ["sub", "exp", "nbf", ""].map(|claim| (tokens, claim))) {
                assert_eq!(tokens.claim(&facts, claim, now()), None);
            }
        });
    }

    /// A token in which one byte was changed is another one.
    #[test]
    fn a_changed_byte_is_noticed(at in any::<prop::sample::Index>(), byte in "[A-Za-z0-9_.-]") {
        thread_local! {
            static RIGHT: (JwtTokens, String) = {
                let issuer = Issuer::p256();
                (by_key(&issuer, &["ES256"]), issuer.token("ES256", &alice()))
            };
        }
        RIGHT.with(|(tokens, right)| {
            let mut wrong = right.clone().into_bytes();
            let at = at.index(wrong.len());
            wrong[at] = byte.as_bytes()[0];
            let wrong = String::from_utf8(wrong).unwrap();
            assert_eq!(sub(tokens, &wrong).is_some(), wrong == *right, "{wrong}");
        });
    }

}

proptest! {
    #![proptest_config(crate::common::config(200))]

    #[test]
    fn keys_of_garbage_never_panic(bytes in any::<Vec<u8>>(), tag in "(PUBLIC KEY|RSA PUBLIC KEY|CERTIFICATE|X)") {
        let folder = Folder::new();
        folder.write("key.pem", pem(&tag, &bytes));
        for algorithm in ["RS256", "ES256", "EdDSA"] {
            let _ = JwtTokens::from_policy(&key_file(&[algorithm]), folder.path());
        }
        folder.write("key.pem", &bytes);
        let jwt = Jwt { jwks_file: Some("key.pem".to_owned()), ..Jwt::default() };
        prop_assert!(JwtTokens::from_policy(&jwt, folder.path()).is_err());
    }
}

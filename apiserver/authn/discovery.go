package authn

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"slices"
)

// Paths of OpenID Connect discovery.
const (
	OpenIDConfigPath = "/.well-known/openid-configuration"
	JWKSPath         = "/openid/v1/jwks"
)

// jsonWebKey is a public key by RFC 7517 and RFC 7518 §6.
type jsonWebKey struct {
	Use       string `json:"use"`
	Type      string `json:"kty"`
	KeyID     string `json:"kid"`
	Curve     string `json:"crv,omitempty"`
	Algorithm string `json:"alg"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
	N         string `json:"n,omitempty"`
	E         string `json:"e,omitempty"`
}

// Discovery serves the two documents by which others verify ServiceAccount tokens.
// externalAddress is the host[:port] that jwks_uri names; with jwksURI set that is named instead.
func (i *Issuer) Discovery(externalAddress, jwksURI string) (http.Handler, error) {
	if jwksURI == "" {
		jwksURI = "https://" + externalAddress + JWKSPath
	}
	keys := struct {
		Keys []jsonWebKey `json:"keys"`
	}{}
	var algs []string
	for _, k := range i.keys {
		j := jsonWebKey{Use: "sig", KeyID: k.id, Algorithm: k.alg.name}
		switch pub := k.key.(type) {
		case *ecdsa.PublicKey:
			point, err := pub.Bytes()
			if err != nil {
				return nil, fmt.Errorf("encode public key %s: %w", k.id, err)
			}
			n := (len(point) - 1) / 2 // uncompressed: 4, x, y
			j.Type, j.Curve = "EC", pub.Params().Name
			j.X, j.Y = encodeSegment(point[1:1+n]), encodeSegment(point[1+n:])
		case *rsa.PublicKey:
			j.Type = "RSA"
			j.N = encodeSegment(pub.N.Bytes())
			j.E = encodeSegment(big.NewInt(int64(pub.E)).Bytes())
		}
		keys.Keys = append(keys.Keys, j)
		algs = append(algs, k.alg.name)
	}
	slices.Sort(algs)
	jwks, err := json.Marshal(keys)
	if err != nil {
		return nil, fmt.Errorf("encode key set: %w", err)
	}
	config, err := json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		JWKSURI       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{i.url, jwksURI, []string{"id_token"}, []string{"public"}, slices.Compact(algs)})
	if err != nil {
		return nil, fmt.Errorf("encode OpenID configuration: %w", err)
	}
	serve := func(contentType string, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			if req.Method != http.MethodGet && req.Method != http.MethodHead {
				w.Header().Set("Allow", "GET, HEAD")
				http.Error(w, "405 Method Not Allowed", http.StatusMethodNotAllowed)
				return
			}
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Cache-Control", "public, max-age=3600")
			_, _ = w.Write(body) // the client is gone if this fails
		}
	}
	mux := http.NewServeMux()
	mux.Handle(OpenIDConfigPath, serve("application/json", config))
	mux.Handle(JWKSPath, serve("application/jwk-set+json", jwks))
	return mux, nil
}

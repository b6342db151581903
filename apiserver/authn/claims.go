package authn

import (
	"encoding/json"
	"fmt"
	"time"
)

// claims are the payload of both kinds of ServiceAccount tokens (RFC 7519 and the
// private claims of KEP-1205).
type claims struct {
	Audience   audienceClaim `json:"aud,omitempty"`
	Expiry     *date         `json:"exp,omitempty"`
	IssuedAt   *date         `json:"iat,omitempty"`
	Issuer     string        `json:"iss"`
	ID         string        `json:"jti,omitempty"`
	Kubernetes *boundClaims  `json:"kubernetes.io,omitempty"`
	NotBefore  *date         `json:"nbf,omitempty"`
	Subject    string        `json:"sub"`

	LegacyNamespace string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
	LegacySecret    string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
	LegacyName      string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	LegacyUID       string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
}

type boundClaims struct {
	Namespace      string       `json:"namespace,omitempty"`
	Node           *objectClaim `json:"node,omitempty"`
	Pod            *objectClaim `json:"pod,omitempty"`
	Secret         *objectClaim `json:"secret,omitempty"`
	ServiceAccount objectClaim  `json:"serviceaccount"`
	WarnAfter      *date        `json:"warnafter,omitempty"`

	// Tokens bound to these come from servers with features that this one has not; they must
	// not pass as unbound.
	Validating *objectClaim `json:"validatingwebhookconfiguration,omitempty"`
	Mutating   *objectClaim `json:"mutatingwebhookconfiguration,omitempty"`
}

type objectClaim struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// date is a NumericDate: seconds since the epoch, possibly with a fraction.
type date int64

func numericDate(t time.Time) *date {
	d := date(t.Unix())
	return &d
}

func (d date) time() time.Time { return time.Unix(int64(d), 0) }

func (d *date) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("numeric date: %w", err)
	}
	*d = date(f)
	return nil
}

// audienceClaim is one string or a list of them.
type audienceClaim []string

func (a *audienceClaim) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*a = audienceClaim{one}
		return nil
	}
	var many []string
	if err := json.Unmarshal(b, &many); err != nil {
		return fmt.Errorf("audience: %w", err)
	}
	*a = many
	return nil
}

// leeway is the clock skew that is tolerated between API servers.
const leeway = time.Minute

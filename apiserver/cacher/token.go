package cacher

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// continueToken is what a continue parameter holds, in upstream's form, so that a list
// begun at one API server can be continued at another, of either make.
type continueToken struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"` // -1: the newest, giving up consistency
	Start    string `json:"start"`
}

const tokenVersion = "meta.k8s.io/v1"

// encodeContinue makes a token to go on at start, a key below the list's prefix.
func encodeContinue(rev int64, start string) string {
	b, err := json.Marshal(continueToken{Version: tokenVersion, Revision: rev, Start: start})
	if err != nil {
		// A struct of strings and integers always encodes.
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeContinue reads a token. Clients can forge one: start never leaves the prefix.
func decodeContinue(token string) (rev int64, start string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return 0, "", invalidContinue(err.Error())
	}
	var t continueToken
	if err := json.Unmarshal(b, &t); err != nil {
		return 0, "", invalidContinue(err.Error())
	}
	switch {
	case t.Version != tokenVersion:
		return 0, "", apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: continue key is not valid: server does not recognize this encoded version %s", t.Version))
	case t.Revision == 0:
		return 0, "", apierrors.NewBadRequest("invalid continue token: continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
	case t.Start == "":
		return 0, "", apierrors.NewBadRequest("invalid continue token: continue key is not valid: encoded start key empty (version meta.k8s.io/v1)")
	}
	key := t.Start
	if !strings.HasPrefix(key, "/") {
		key = "/" + key
	}
	if path.Clean(key) != key {
		return 0, "", invalidContinue(t.Start)
	}
	return t.Revision, key[1:], nil
}

func invalidContinue(detail string) error {
	return apierrors.NewBadRequest("invalid continue token: continue key is not valid: " + detail)
}

package authn

import (
	"context"
	"crypto/subtle"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// What a bootstrap token's Secret looks like
// (https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/).
const (
	bootstrapUserPrefix = "system:bootstrap:"
	bootstrapGroup      = "system:bootstrappers"
	bootstrapNamespace  = "kube-system"
)

var (
	bootstrapToken      = regexp.MustCompile(`\A([a-z0-9]{6})\.([a-z0-9]{16})\z`)
	bootstrapExtraGroup = regexp.MustCompile(`\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z`)
)

// bootstrapTokens accepts the tokens that nodes join with. A token whose Secret is
// missing, expired or not for authentication is nobody's.
type bootstrapTokens struct {
	caches lookup.Caches
	clock  clock.PassiveClock
}

func (b *bootstrapTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	m := bootstrapToken.FindStringSubmatch(token)
	if m == nil {
		return nil, false, nil
	}
	id, value := m[1], m[2]
	secret, err := lookup.CachedOrFresh[*corev1.Secret](ctx, b.caches, secrets, bootstrapNamespace, "bootstrap-token-"+id)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	data := func(key string) string { return string(secret.Data[key]) }
	if secret.DeletionTimestamp != nil || secret.Type != "bootstrap.kubernetes.io/token" ||
		subtle.ConstantTimeCompare([]byte(data("token-secret")), []byte(value)) != 1 ||
		data("token-id") != id ||
		data("usage-bootstrap-authentication") != "true" {
		return nil, false, nil
	}
	if e := data("expiration"); e != "" {
		at, err := time.Parse(time.RFC3339, e)
		if err != nil || !at.After(b.clock.Now()) {
			return nil, false, nil
		}
	}
	groups := []string{bootstrapGroup}
	if extra := data("auth-extra-groups"); extra != "" {
		for _, g := range strings.Split(extra, ",") {
			if !bootstrapExtraGroup.MatchString(g) {
				return nil, false, nil
			}
			groups = append(groups, g)
		}
		slices.Sort(groups)
		groups = slices.Compact(groups)
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: bootstrapUserPrefix + id, Groups: groups}}, true, nil
}

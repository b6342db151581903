package authn

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/authz"
)

// Impersonate returns the user that a request asks to act as, nil when it asks for none.
// It takes the headers off the request. attributes are those of the request as the
// authenticated user makes it: constrained impersonation (KEP-5284) asks whether the
// user may do that very thing on another's behalf, and legacy impersonation follows when
// it may not. constraint is the verb that allowed it, empty for legacy; audit records it.
func Impersonate(ctx context.Context, h http.Header, attributes authorizer.Attributes, a authorizer.UnconditionalAuthorizer) (as user.Info, constraint string, err error) {
	wanted, err := takeImpersonation(h)
	if err != nil || wanted == nil {
		return nil, "", err
	}
	im := impersonation{ctx: ctx, authorizer: a, requestor: attributes.GetUser(), wanted: wanted}
	var firstErr error
	for _, mode := range im.constrainedModes() {
		as, err := im.constrained(mode, attributes)
		if err == nil {
			return as, "impersonate:" + mode, nil
		}
		if firstErr == nil {
			firstErr = err
		}
	}
	as, err = im.legacy()
	if err == nil {
		return as, "", nil
	}
	if firstErr == nil {
		firstErr = err
	}
	return nil, "", firstErr
}

func takeImpersonation(h http.Header) (*user.DefaultInfo, error) {
	u := &user.DefaultInfo{
		Name:   h.Get(authenticationv1.ImpersonateUserHeader),
		UID:    h.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: h[authenticationv1.ImpersonateGroupHeader],
	}
	asked := u.Name != "" || u.UID != "" || len(u.Groups) > 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !ok {
			continue
		}
		asked = true
		key = strings.ToLower(key)
		if plain, err := url.PathUnescape(key); err == nil {
			key = plain
		}
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[key] = append(u.Extra[key], values...)
	}
	if !asked {
		return nil, nil
	}
	if u.Name == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %#v without impersonating a user name", u))
	}
	h.Del(authenticationv1.ImpersonateUserHeader)
	h.Del(authenticationv1.ImpersonateUIDHeader)
	h.Del(authenticationv1.ImpersonateGroupHeader)
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		return strings.HasPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
	})
	return u, nil
}

type impersonation struct {
	ctx        context.Context
	authorizer authorizer.UnconditionalAuthorizer
	requestor  user.Info
	wanted     *user.DefaultInfo
}

// Modes of constrained impersonation.
const (
	modeAssociatedNode = "associated-node"
	modeArbitraryNode  = "arbitrary-node"
	modeServiceAccount = "serviceaccount"
	modeUserInfo       = "user-info"
)

// constrainedModes are those that can make the wanted user, narrowest first.
func (im *impersonation) constrainedModes() []string {
	w := im.wanted
	nameOnly := w.UID == "" && len(w.Groups) == 0 && len(w.Extra) == 0
	node, isNode := nodeName(w.Name)
	_, _, saErr := serviceaccount.SplitUsername(w.Name)
	switch {
	case isNode && nameOnly:
		own := im.requestor.GetExtra()[serviceaccount.NodeNameKey]
		if _, _, err := serviceaccount.SplitUsername(im.requestor.GetName()); err == nil && len(own) == 1 && own[0] == node {
			return []string{modeAssociatedNode, modeArbitraryNode}
		}
		return []string{modeArbitraryNode}
	case saErr == nil && nameOnly:
		return []string{modeServiceAccount}
	case !isNode && saErr != nil:
		return []string{modeUserInfo}
	}
	return nil
}

// actingFor is the request itself under the verb that allows doing it as somebody else.
type actingFor struct {
	authorizer.Attributes
	requestor user.Info
	mode      string
}

func (a actingFor) GetUser() user.Info { return a.requestor }
func (a actingFor) GetVerb() string {
	return "impersonate-on:" + a.mode + ":" + a.Attributes.GetVerb()
}

func (im *impersonation) constrained(mode string, attributes authorizer.Attributes) (user.Info, error) {
	requestor := im.requestor
	if mode == modeAssociatedNode {
		// What is allowed must hold for the agent on every node, so its own node is left out.
		requestor = &user.DefaultInfo{
			Name: requestor.GetName(), UID: requestor.GetUID(), Groups: requestor.GetGroups(),
			Extra: map[string][]string{
				"authentication.kubernetes.io/associated-node-keys": slices.Sorted(maps.Keys(requestor.GetExtra())),
			},
		}
	}
	if err := im.check(actingFor{attributes, requestor, mode}); err != nil {
		return nil, err
	}
	as := *im.wanted
	target := authorizer.AttributesRecord{
		User: requestor, Verb: "impersonate:" + mode, ResourceRequest: true,
		APIGroup: authenticationv1.GroupName, APIVersion: "v1",
		Resource: "users", Name: as.Name,
	}
	switch mode {
	case modeAssociatedNode, modeArbitraryNode:
		target.Resource = "nodes"
		target.Name, _ = nodeName(as.Name)
		if mode == modeAssociatedNode {
			target.Name = "*"
		}
		as.Groups = []string{user.NodesGroup}
	case modeServiceAccount:
		target.Resource = "serviceaccounts"
		target.Namespace, target.Name, _ = serviceaccount.SplitUsername(as.Name)
		as.Groups = serviceaccount.MakeGroupNames(target.Namespace)
	}
	if err := im.check(target); err != nil {
		return nil, err
	}
	target.Namespace, target.Name = "", ""
	if as.UID != "" {
		target.Resource, target.Name = "uids", as.UID
		if err := im.check(target); err != nil {
			return nil, err
		}
	}
	if mode == modeUserInfo {
		if err := im.constrainedGroups(target); err != nil {
			return nil, err
		}
		if err := im.constrainedExtra(target); err != nil {
			return nil, err
		}
	}
	return finish(&as), nil
}

// severalChecks is from how many checks on asking for all of them at once comes first.
const severalChecks = 4

func (im *impersonation) constrainedGroups(target authorizer.AttributesRecord) error {
	groups := im.wanted.Groups
	target.Resource, target.Name = "groups", ""
	switch {
	case slices.Contains(groups, ""):
		return authz.Forbidden(target, "impersonating the empty string group is not allowed")
	case slices.Contains(groups, user.SystemPrivilegedGroup):
		target.Name = user.SystemPrivilegedGroup
		return authz.Forbidden(target, "impersonating the system:masters group is not allowed")
	}
	if len(groups) >= severalChecks {
		target.Name = "*"
		if im.check(target) == nil {
			return nil
		}
	}
	for _, g := range groups {
		target.Name = g
		if err := im.check(target); err != nil {
			return err
		}
	}
	return nil
}

func (im *impersonation) constrainedExtra(target authorizer.AttributesRecord) error {
	target.Resource, target.Name = "userextras", ""
	n := 0
	for key, values := range im.wanted.Extra {
		if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
			return authz.Forbidden(target, fmt.Sprintf("impersonating an invalid key in extra is not allowed: %v", err))
		}
		if len(values) == 0 || slices.Contains(values, "") {
			return authz.Forbidden(target, "impersonating the empty string value in extra is not allowed")
		}
		n += len(values)
	}
	if n >= severalChecks {
		target.Subresource, target.Name = "*", "*"
		if im.check(target) == nil {
			return nil
		}
	}
	return im.extra(target)
}

func (im *impersonation) extra(target authorizer.AttributesRecord) error {
	for _, key := range slices.Sorted(maps.Keys(im.wanted.Extra)) {
		for _, value := range im.wanted.Extra[key] {
			target.Subresource, target.Name = key, value
			if err := im.check(target); err != nil {
				return err
			}
		}
	}
	return nil
}

// legacy needs the verb "impersonate" on each part of the wanted user, and then allows everything that user may do.
func (im *impersonation) legacy() (user.Info, error) {
	as := *im.wanted
	target := authorizer.AttributesRecord{
		User: im.requestor, Verb: "impersonate", APIVersion: "v1", ResourceRequest: true,
		Resource: "users", Name: as.Name,
	}
	if ns, name, err := serviceaccount.SplitUsername(as.Name); err == nil {
		target.Resource, target.Namespace, target.Name = "serviceaccounts", ns, name
		if len(as.Groups) == 0 {
			as.Groups = serviceaccount.MakeGroupNames(ns)
		}
	}
	if err := im.check(target); err != nil {
		return nil, err
	}
	target.Namespace = ""
	target.Resource = "groups"
	for _, g := range im.wanted.Groups {
		target.Name = g
		if err := im.check(target); err != nil {
			return nil, err
		}
	}
	target.APIGroup = authenticationv1.GroupName
	if as.UID != "" {
		target.Resource, target.Name = "uids", as.UID
		if err := im.check(target); err != nil {
			return nil, err
		}
	}
	target.Resource = "userextras"
	if err := im.extra(target); err != nil {
		return nil, err
	}
	return finish(&as), nil
}

// finish adds the group that follows from being, or not being, somebody. A request that
// names one of the two groups itself is taken at its word.
func finish(as *user.DefaultInfo) user.Info {
	group := user.AllAuthenticated
	if as.Name == user.Anonymous {
		group = user.AllUnauthenticated
	} else if slices.Contains(as.Groups, user.AllUnauthenticated) {
		return as
	}
	if !slices.Contains(as.Groups, group) {
		as.Groups = append(slices.Clone(as.Groups), group)
	}
	return as
}

func (im *impersonation) check(a authorizer.Attributes) error {
	decision, reason, err := im.authorizer.Authorize(im.ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		if reason != "" {
			reason = ": " + reason
		}
		reason = err.Error() + reason
	}
	return authz.Forbidden(a, reason)
}

func nodeName(username string) (string, bool) {
	name, ok := strings.CutPrefix(username, "system:node:")
	return name, ok && len(validation.NameIsDNSSubdomain(name, false)) == 0
}

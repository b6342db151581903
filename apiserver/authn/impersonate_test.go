package authn

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestImpersonate(t *testing.T) {
	type want struct {
		name       string
		groups     []string
		constraint string
		err        string
	}
	agent := &user.DefaultInfo{
		Name: "system:serviceaccount:kube-system:agent", Groups: []string{"system:serviceaccounts"},
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}},
	}
	bob := &user.DefaultInfo{Name: "bob", Groups: []string{user.AllAuthenticated}}
	for _, tt := range []struct {
		name      string
		requestor user.Info
		header    http.Header
		allow     []string // verb resource/name
		want      want
	}{
		{name: "none", requestor: bob},
		{
			name: "legacy user", requestor: bob, header: http.Header{"Impersonate-User": {"alice"}},
			allow: []string{"impersonate users/alice"},
			want:  want{name: "alice", groups: []string{user.AllAuthenticated}},
		},
		{
			name: "legacy group needs its own permission", requestor: bob,
			header: http.Header{"Impersonate-User": {"alice"}, "Impersonate-Group": {"dev"}},
			allow:  []string{"impersonate users/alice"},
			want:   want{err: `cannot impersonate-on:user-info:get resource "pods"`},
		},
		{
			name: "legacy service account gets its groups", requestor: bob,
			header: http.Header{"Impersonate-User": {"system:serviceaccount:ns:sa"}},
			allow:  []string{"impersonate serviceaccounts/sa"},
			want: want{
				name:   "system:serviceaccount:ns:sa",
				groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns", user.AllAuthenticated},
			},
		},
		{
			name: "legacy extra", requestor: bob,
			header: http.Header{"Impersonate-User": {"alice"}, "Impersonate-Extra-Example.com%2froles": {"x"}},
			allow:  []string{"impersonate users/alice", "impersonate userextras/example.com/roles/x"},
			want:   want{name: "alice", groups: []string{user.AllAuthenticated}},
		},
		{
			name: "constrained user", requestor: bob, header: http.Header{"Impersonate-User": {"alice"}},
			allow: []string{"impersonate-on:user-info:get pods/p", "impersonate:user-info users/alice"},
			want:  want{name: "alice", groups: []string{user.AllAuthenticated}, constraint: "impersonate:user-info"},
		},
		{
			name: "constrained never masters", requestor: bob,
			header: http.Header{"Impersonate-User": {"alice"}, "Impersonate-Group": {"system:masters"}},
			allow:  []string{"impersonate-on:user-info:get pods/p", "impersonate:user-info users/alice", "impersonate:user-info groups/system:masters"},
			want:   want{err: "impersonating the system:masters group is not allowed"},
		},
		{
			name: "agent acts as its node", requestor: agent, header: http.Header{"Impersonate-User": {"system:node:n1"}},
			allow: []string{"impersonate-on:associated-node:get pods/p", "impersonate:associated-node nodes/*"},
			want:  want{name: "system:node:n1", groups: []string{user.NodesGroup, user.AllAuthenticated}, constraint: "impersonate:associated-node"},
		},
		{
			name: "agent may not act as another node", requestor: agent, header: http.Header{"Impersonate-User": {"system:node:n2"}},
			allow: []string{"impersonate-on:associated-node:get pods/p", "impersonate:associated-node nodes/*"},
			want:  want{err: "arbitrary-node"},
		},
		{
			name: "group without user", requestor: bob, header: http.Header{"Impersonate-Group": {"dev"}},
			want: want{err: "without impersonating a user name"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := authorizer.AuthorizerFunc(func(_ context.Context, r authorizer.Attributes) (authorizer.Decision, string, error) {
				resource := r.GetResource()
				if r.GetSubresource() != "" {
					resource += "/" + r.GetSubresource()
				}
				if slices.Contains(tt.allow, r.GetVerb()+" "+resource+"/"+r.GetName()) {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			})
			h := tt.header.Clone()
			as, constraint, err := Impersonate(t.Context(), h, authorizer.AttributesRecord{
				User: tt.requestor, Verb: "get", Resource: "pods", Name: "p", ResourceRequest: true,
			}, a)
			if tt.want.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want.err) {
					t.Fatalf("error is %v, want %q", err, tt.want.err)
				}
				if !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err) {
					t.Errorf("error is a %T: %v", err, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(h) != 0 {
				t.Errorf("headers left: %v", h)
			}
			if tt.want.name == "" {
				if as != nil {
					t.Fatalf("acts as %+v", as)
				}
				return
			}
			if as.GetName() != tt.want.name || !reflect.DeepEqual(as.GetGroups(), tt.want.groups) || constraint != tt.want.constraint {
				t.Errorf("acts as %+v by %q", as, constraint)
			}
		})
	}
}

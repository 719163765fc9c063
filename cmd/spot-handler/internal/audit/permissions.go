package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"

	"spot-handler/cmd/spot-handler/internal/console"
)

// account is the first daemon of each service account, with what was read of the account.
type account struct{ *Daemon }

func (a account) object() Owned { return accountOf(a.Namespace, a.Account) }

func accountOf(namespace, name string) Owned { return Owned{namespace, "serviceaccount/" + name} }

// user is what the API server calls the account.
func (a account) user() string { return "system:serviceaccount:" + a.Namespace + ":" + a.Account }

func (s Snapshot) accounts() (list []account) {
	for i := range s.Daemons {
		a := account{&s.Daemons[i]}
		if !slices.ContainsFunc(list, func(o account) bool { return o.object() == a.object() }) {
			list = append(list, a)
		}
	}
	return list
}

// permissionsToStart: the program asks for these when it starts, and ends without.
func permissionsToStart(_ Snapshot, a account) []Finding {
	missing := slices.DeleteFunc(slices.Clone(a.Missing), func(p Permission) bool { return !p.ToStart })
	return a.lacks(missing, a.Account+"-may-start", "it does not start again once it has ended")
}

// permissionsToAct: the program does without what it has no permission for.
func permissionsToAct(_ Snapshot, a account) []Finding {
	missing := slices.DeleteFunc(slices.Clone(a.Missing), func(p Permission) bool { return p.ToStart })
	return a.lacks(missing, a.Account+"-may-act", "it drains without: no replacements, no Events, or evictions that are cut short")
}

// lacks says what follows from these permissions, which the account does not have. A role of that
// name would give them.
func (a account) lacks(missing []Permission, role, why string) []Finding {
	if len(missing) == 0 {
		return nil
	}
	var what []string
	for _, p := range missing {
		what = append(what, p.String())
	}
	fix := fmt.Sprintf("in the manifest of %s: an account that a ClusterRoleBinding of spot-handler names", a.Object)
	if a.Named {
		fix = console.Command("echo", a.grant(role, missing)) + " | kubectl apply -f -"
	}
	return []Finding{{What: "is not allowed to " + strings.Join(console.Some(what, 4), ", "), Why: why, Fix: fix}}
}

func (p Permission) String() string {
	text := p.Verb + " " + p.Resource
	if p.Group != "" {
		text += "." + p.Group
	}
	if p.Namespace != "" {
		text += " in namespace " + p.Namespace
	}
	return text
}

// Ask says whether somebody is allowed to do something.
type Ask func(ctx context.Context, to *authorizationv1.ResourceAttributes) (allowed bool, err error)

// Missing asks about each permission, and returns those that are not granted.
func Missing(ctx context.Context, list []Permission, ask Ask) (missing []Permission, err error) {
	granted := make([]bool, len(list))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, p := range list {
		g.Go(func() (err error) {
			resource, subresource, _ := strings.Cut(p.Resource, "/")
			granted[i], err = ask(ctx, &authorizationv1.ResourceAttributes{
				Verb: p.Verb, Group: p.Group, Resource: resource, Subresource: subresource, Namespace: p.Namespace,
			})
			if err != nil {
				return fmt.Errorf("check permission to %s: %w", p, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, p := range list {
		if !granted[i] {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// grant is a role with the permissions, and what binds it to the account, as JSON.
func (a account) grant(name string, permissions []Permission) string {
	rules := map[string][]any{} // by namespace
	for _, p := range permissions {
		rules[p.Namespace] = append(rules[p.Namespace], map[string]any{
			"apiGroups": []string{p.Group},
			"resources": []string{p.Resource},
			"verbs":     []string{p.Verb},
		})
	}
	var objects []any
	for _, namespace := range slices.Sorted(maps.Keys(rules)) {
		kind, metadata := "ClusterRole", map[string]any{"name": name}
		if namespace != "" {
			kind, metadata = "Role", map[string]any{"name": name, "namespace": namespace}
		}
		const api = "rbac.authorization.k8s.io"
		objects = append(objects,
			map[string]any{"apiVersion": api + "/v1", "kind": kind, "metadata": metadata, "rules": rules[namespace]},
			map[string]any{"apiVersion": api + "/v1", "kind": kind + "Binding", "metadata": metadata,
				"roleRef":  map[string]any{"apiGroup": api, "kind": kind, "name": name},
				"subjects": []map[string]any{{"kind": "ServiceAccount", "name": a.Account, "namespace": a.Namespace}}})
	}
	return asJSON(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
}

// withoutFlowSchemas: the chart brings FlowSchemas, and they are not there.
func withoutFlowSchemas(_ Snapshot, a account) []Finding {
	if a.Release == "" || !a.Unlisted {
		return nil
	}
	return []Finding{{
		What: "no FlowSchema names it", Fix: a.upgrade("--set", "flowSchemas=true"),
		Why: "when the API server is busy, its lease and its cordons wait behind its own evictions and lists",
	}}
}

// withoutPolicies: the chart brings admission policies, and they are not in force.
func withoutPolicies(_ Snapshot, a account) []Finding {
	if a.Release == "" || !a.Unheld {
		return nil
	}
	return []Finding{{
		What: "no admission policy holds it to what it changes", Fix: a.upgrade("--set", "patchPolicies=true"),
		Why: "anybody with its token may change all of every Node and pod",
	}}
}

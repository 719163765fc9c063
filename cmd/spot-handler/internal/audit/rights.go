package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"spot-handler/cmd/spot-handler/internal/console"
)

// rightsToStart: the program asks for these when it starts, and ends without.
func rightsToStart(s Snapshot) []Finding {
	return s.rights(true, "it does not start again once it has ended")
}

// rightsToAct: the program does without what it has no right to.
func rightsToAct(s Snapshot) []Finding {
	return s.rights(false, "it drains without: no replacements, no Events, or evictions that are cut short")
}

// rights are the rights that accounts lack.
func (s Snapshot) rights(toStart bool, why string) (found []Finding) {
	for _, d := range s.accounts() {
		missing := slices.DeleteFunc(slices.Clone(d.Missing), func(r Right) bool { return r.ToStart != toStart })
		if len(missing) == 0 {
			continue
		}
		name := d.Account + "-may-act"
		if toStart {
			name = d.Account + "-may-start"
		}
		var what []string
		for _, r := range missing {
			what = append(what, r.String())
		}
		const enough = 4
		if more := len(what) - enough; more > 0 {
			what = append(what[:enough], fmt.Sprintf("%d more", more))
		}
		f := Finding{
			Namespace: d.Namespace, Object: "serviceaccount/" + d.Account,
			What: "is not allowed to " + strings.Join(what, ", "), Why: why,
			Fix: console.Command("echo", grant(name, d, missing)) + " | kubectl apply -f -",
		}
		if !d.Named {
			f.Fix = fmt.Sprintf("in the manifest of %s: an account that a ClusterRoleBinding of spot-handler names", d.Owner)
		}
		found = append(found, f)
	}
	return found
}

func (r Right) String() string {
	text := r.Verb + " " + r.Resource
	if r.Group != "" {
		text += "." + r.Group
	}
	return text
}

// grant is a role with the rights, and what binds it to the account, as JSON.
func grant(name string, d Daemon, rights []Right) string {
	var objects []map[string]any
	var namespaces []string
	for _, r := range rights {
		if !slices.Contains(namespaces, r.Namespace) {
			namespaces = append(namespaces, r.Namespace)
		}
	}
	for _, namespace := range namespaces {
		kind, metadata := "ClusterRole", map[string]any{"name": name}
		if namespace != "" {
			kind, metadata = "Role", map[string]any{"name": name, "namespace": namespace}
		}
		var rules []map[string]any
		for _, r := range rights {
			if r.Namespace == namespace {
				rules = append(rules, map[string]any{"apiGroups": []string{r.Group}, "resources": []string{r.Resource}, "verbs": []string{r.Verb}})
			}
		}
		const api = "rbac.authorization.k8s.io"
		objects = append(objects,
			map[string]any{"apiVersion": api + "/v1", "kind": kind, "metadata": metadata, "rules": rules},
			map[string]any{"apiVersion": api + "/v1", "kind": kind + "Binding", "metadata": metadata,
				"roleRef":  map[string]any{"apiGroup": api, "kind": kind, "name": name},
				"subjects": []map[string]any{{"kind": "ServiceAccount", "name": d.Account, "namespace": d.Namespace}}})
	}
	text, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects}) // of strings: it does not fail
	return string(text)
}

// accounts are one daemon of each service account.
func (s Snapshot) accounts() (list []Daemon) {
	for _, d := range s.Daemons {
		if !slices.ContainsFunc(list, func(o Daemon) bool { return o.Namespace == d.Namespace && o.Account == d.Account }) {
			list = append(list, d)
		}
	}
	return list
}

// withoutFlowSchemas: the chart brings FlowSchemas, and they are not there.
func withoutFlowSchemas(s Snapshot) []Finding {
	return s.unprotected(func(d Daemon) bool { return d.Unlisted }, "flowSchemas", "no FlowSchema names it",
		"when the API server is busy, its lease and its cordons wait behind its own evictions and lists")
}

// withoutPolicies: the chart brings admission policies, and they are not in force.
func withoutPolicies(s Snapshot) []Finding {
	return s.unprotected(func(d Daemon) bool { return d.Unheld }, "patchPolicies", "no admission policy holds it to what it changes",
		"whoever has its token may change all of every Node and pod")
}

// unprotected are accounts of the chart, which a value of it protects.
func (s Snapshot) unprotected(is func(Daemon) bool, value, what, why string) (found []Finding) {
	for _, d := range s.accounts() {
		if d.Release == "" || !is(d) {
			continue
		}
		found = append(found, Finding{
			Namespace: d.Namespace, Object: "serviceaccount/" + d.Account, What: what, Why: why,
			Fix: d.upgrade("--set", value+"=true"),
		})
	}
	return found
}

package chart

import (
	"maps"
	"slices"
	"strings"
)

// QueueURL is the queue of rendered charts.
const QueueURL = "https://sqs.eu-west-1.amazonaws.com/111122223333/spot-handler"

// PlaceholderNamespace is that of placeholder pods.
const PlaceholderNamespace = "spot-handler-placeholders"

// Modes of the chart.
var Modes = []string{"imds", "queue", "both"}

// Values are the least that a mode needs, with the changes, by their paths, such as
// imds.port.
func Values(mode string, changes map[string]any) map[string]any {
	values := map[string]any{}
	set(values, "mode", mode)
	set(values, "image.repository", "registry.example.com/spot-handler")
	if mode != "imds" {
		set(values, "flags.queueUrl", QueueURL)
	}
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		set(values, path, changes[path])
	}
	return values
}

func set(values map[string]any, path string, value any) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		inner, ok := values[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			values[name] = inner
		}
		values = inner
	}
	values[names[len(names)-1]] = value
}

// Case is one of the Matrix.
type Case struct {
	Name, Mode string
	Release    Release
}

// Matrix is every mode with every change that is worth a look. The tests of this package
// render it, and the stories have a real API server judge the outcome.
func Matrix() []Case {
	var cases []Case
	for _, mode := range Modes {
		for _, name := range slices.Sorted(maps.Keys(changes)) {
			cases = append(cases, Case{Name: mode + ", " + name, Mode: mode, Release: Release{Values: Values(mode, changes[name])}})
		}
	}
	return cases
}

var (
	nearby = map[string]any{"preferredDuringSchedulingIgnoredDuringExecution": []any{map[string]any{
		"weight": 1, "podAffinityTerm": map[string]any{"topologyKey": "kubernetes.io/hostname", "labelSelector": map[string]any{"matchLabels": map[string]any{"app": "noisy"}}},
	}}}
	preferred = map[string]any{"weight": 1, "preference": map[string]any{"matchExpressions": []any{map[string]any{"key": "pool", "operator": "Exists"}}}}
)

// changes are values that are rendered with each mode, by their paths.
var changes = map[string]map[string]any{
	"defaults":           {},
	"pod network":        {"imds.hostNetwork": false},
	"no policies":        {"imds.ownNodeOnly": false, "networkPolicy.enabled": false, "flowSchemas": false, "patchPolicies": false},
	"pod monitor":        {"podMonitor.enabled": true, "podMonitor.interval": "15s", "podMonitor.labels": map[string]any{"release": "prometheus"}},
	"service monitor":    {"serviceMonitor.enabled": true, "serviceMonitor.labels": map[string]any{"release": "prometheus"}},
	"alerts, dashboard":  {"prometheusRule.enabled": true, "prometheusRule.runbookUrl": "https://wiki.example.com/runbook", "dashboard.enabled": true, "dashboard.annotations": map[string]any{"grafana_folder": "Spot"}},
	"role":               {"controller.serviceAccount.roleArn": "arn:aws:iam::111122223333:role/spot-handler"},
	"accounts of others": {"imds.serviceAccount.create": false, "imds.serviceAccount.name": "mine", "controller.serviceAccount.create": false, "controller.serviceAccount.name": "mine-too"},
	"no provisioner":     {"flags.provisioner": "none"},
	"placeholders":       {"flags.fallbackSelector": "node-lifecycle=on-demand", "placeholderImage": "pause:3.9"},
	"dry run":            {"flags.dryRun": true},
	"owner references":   {"rbac.ownerReferences": true},
	"one replica":        {"controller.replicas": 1},
	"other port":         {"imds.port": 9998, "controller.port": 9999},
	"digest":             {"image.digest": "sha256:" + strings.Repeat("0", 64), "image.pullSecrets": []any{"registry"}, "imagePullSecrets": []any{"second", map[string]any{"name": "third"}}, "global.imagePullSecrets": []any{map[string]any{"name": "fourth"}}},
	"expressions": {"imds.nodeExpressions": []any{
		map[string]any{"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": []any{"auto"}}, map[string]any{"key": "ours", "operator": "Exists"},
	}},
	"scheduling": {
		"imds.nodeSelector": map[string]any{"pool": "batch"},
		"imds.affinity": map[string]any{
			"podAntiAffinity": nearby,
			"nodeAffinity":    map[string]any{"preferredDuringSchedulingIgnoredDuringExecution": []any{preferred}},
		},
		"imds.updateStrategy":                         map[string]any{"type": "OnDelete"},
		"imds.revisionHistoryLimit":                   0,
		"controller.affinity":                         map[string]any{"podAntiAffinity": nearby},
		"controller.updateStrategy":                   map[string]any{"type": "Recreate"},
		"controller.podDisruptionBudget.minAvailable": "50%",
		"controller.revisionHistoryLimit":             2,
	},
	"labels, extras": {
		"commonLabels": map[string]any{"team": "sre", "release": "ours"}, "imds.podLabels": map[string]any{"team": "batch"},
		"prometheusRule.enabled": true, "prometheusRule.labels": map[string]any{"release": "prometheus"},
		"extraObjects": []any{
			map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "extra", "namespace": "{{ .Release.Namespace }}"}},
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-text\n",
		},
	},
	"monitor's rules": {
		"podMonitor.enabled": true, "podMonitor.scrapeClassicHistograms": false, "podMonitor.scrapeTimeout": "5s",
		"podMonitor.relabelings":       []any{map[string]any{"targetLabel": "cluster", "replacement": "east"}},
		"podMonitor.metricRelabelings": []any{map[string]any{"action": "drop", "regex": "go_.*", "sourceLabels": []any{"__name__"}}},
	},
	"names":   {"fullnameOverride": strings.Repeat("long", 20)},
	"webhook": {"webhook.secretName": "hook", "webhook.headersKey": "headers", "flags.webhookProxy": "http://proxy.example.com:3128"},
	"audit":   {"audit.enabled": true, "audit.baseline": "{}", "audit.failOn": "warning", "audit.schedule": "@daily"},
	"environment": {
		"controller.env":     []any{map[string]any{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}},
		"controller.volumes": []any{map[string]any{"name": "ca", "configMap": map[string]any{"name": "ca"}}}, "controller.volumeMounts": []any{map[string]any{"name": "ca", "mountPath": "/ca"}},
		"imds.env": []any{map[string]any{"name": "A", "value": "1"}}, "controller.envFrom": []any{map[string]any{"secretRef": map[string]any{"name": "a"}}},
		"controller.tolerations": []any{map[string]any{"key": "CriticalAddonsOnly", "operator": "Exists"}}, "controller.nodeSelector": map[string]any{"pool": "system"},
		"controller.podAnnotations": map[string]any{"a": "b"}, "imds.podLabels": map[string]any{"team": "sre"},
		"networkPolicy.egress": []any{map[string]any{"ports": []any{map[string]any{"port": 3128, "protocol": "TCP"}}}},
	},
}

package migrate

// setting is one setting of aws-node-termination-handler, by its documentation of 1.25,
// and what becomes of it here. The tables of deploy/docs/migration.md are these rows; a test compares them.
type setting struct {
	variable string // its environment variable; empty where only its chart has the setting
	value    string // its chart's value; empty where only the program has the setting
	fallback string // what holds where nothing is given: text, or YAML for a map or list
	ofChart  string // the same of its chart, where that is another

	here   string // the table: what does the same here; empty is nothing
	remark string // the table: why there is nothing, or how it differs

	// How it is taken over. At most one is set; none of them means that nothing has to
	// be set here, and that the remark is told where a value other than the harmless ones
	// is given.
	flag    string // the value goes to our flag of this name
	env     string // the value goes to this variable, as others read it
	path    string // the value goes to this one of our chart; COMPONENT stands for imds or controller
	convert func(m *migration, s setting, value string)

	harmless  string // a value that asks for nothing that is missing here; * is any, empty is the fallback
	byDefault string // the mode in which the fallback itself asks for what is missing here
	always    bool   // convert is called for the fallback, too
}

// settings are those with a variable, in the order of its documentation.
var settings = []setting{
	// Which events.
	{variable: "ENABLE_SQS_TERMINATION_DRAINING", value: "enableSqsTerminationDraining", fallback: "false",
		here: "`spot-handler queue`, else `spot-handler imds`", harmless: "*"},
	{variable: "ENABLE_SPOT_INTERRUPTION_DRAINING", value: "enableSpotInterruptionDraining", fallback: "true", convert: watch, always: true,
		here: "`--watch`", remark: "imds mode; in queue mode the queue's rules say what is handled"},
	{variable: "ENABLE_REBALANCE_MONITORING", value: "enableRebalanceMonitoring", fallback: "false",
		here: "`--rebalance=cordon`", remark: "imds mode; in queue mode it drains on every rebalance recommendation, which is `--rebalance=replace`", harmless: "*"},
	{variable: "ENABLE_REBALANCE_DRAINING", value: "enableRebalanceDraining", fallback: "false", convert: rebalance, always: true,
		here: "`--rebalance=replace`", remark: "drains when the replacement is Ready; if none can be made, the node stays in service. With neither of the two, use `--rebalance=ignore`; in imds mode `--watch` without `rebalance` does not even poll for them"},
	{variable: "ENABLE_SCHEDULED_EVENT_DRAINING", value: "enableScheduledEventDraining", fallback: "true", harmless: "*",
		here: "`--watch`", remark: "imds mode; in queue mode the queue's rules say what is handled"},
	{variable: "ENABLE_ASG_LIFECYCLE_DRAINING", value: "enableASGLifecycleDraining", fallback: "false", ofChart: "true", harmless: "*",
		here: "`--watch`", remark: "imds mode; in queue mode the queue's rules say what is handled"},
	{variable: "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS", value: "completeLifecycleActionDelaySeconds", fallback: "-1",
		remark: "a lifecycle action is completed as soon as the node is drained"},
	{variable: "HEARTBEAT_INTERVAL", value: "heartbeatInterval", fallback: "-1", here: "`--heartbeat-until`", convert: heartbeatInterval, remark: "queue mode; heartbeats come at half of the hook's timeout; 48 hours if only the interval is given, as there"},
	{variable: "HEARTBEAT_UNTIL", value: "heartbeatUntil", fallback: "-1", here: "`--heartbeat-until`", convert: seconds("heartbeat-until"), remark: "queue mode; seconds there, a duration here"},

	// The queue.
	{variable: "QUEUE_URL", value: "queueURL", here: "`--queue-url`", flag: "queue-url",
		remark: "give spot-handler a queue of its own while both run: a message goes to one of its readers only"},
	{variable: "WORKERS", value: "workers", fallback: "10", remark: "there is no such limit: a node that waits takes no worker"},
	{variable: "SQS_MSG_VISIBILITY_TIMEOUT_SEC", value: "sqsMsgVisibilityTimeoutSec", fallback: "20",
		remark: "messages are hidden for 30 s, and longer while they are being handled; they are deleted as soon as the record is on the Node"},
	{variable: "DELETE_SQS_MSG_IF_NODE_NOT_FOUND", value: "deleteSqsMsgIfNodeNotFound", fallback: "false", harmless: "true", byDefault: modeQueue,
		here: "always", remark: "a message about an instance that is not a Node of this cluster is deleted after a second look"},
	{variable: "CHECK_TAG_BEFORE_DRAINING", value: "checkTagBeforeDraining", fallback: "true", convert: managedTag, always: true,
		here: "`--managed-tag`", remark: "without it tags are not looked at: every instance that is a Node of this cluster is handled, and no other"},
	{variable: "MANAGED_TAG", value: "managedTag", fallback: "aws-node-termination-handler/managed", here: "`--managed-tag`", harmless: "*", remark: "as above"},
	{variable: "CHECK_ASG_TAG_BEFORE_DRAINING", value: "checkASGTagBeforeDraining", fallback: "true", harmless: "*",
		here: "`--managed-tag`", remark: "older name of `CHECK_TAG_BEFORE_DRAINING`, which overrides it; its chart sets both"},
	{variable: "MANAGED_ASG_TAG", value: "managedAsgTag", fallback: "aws-node-termination-handler/managed", harmless: "*",
		here: "`--managed-tag`", remark: "older name of `MANAGED_TAG`, which overrides it; its chart sets both"},
	{variable: "USE_PROVIDER_ID", value: "useProviderId", fallback: "false", here: "always", harmless: "*",
		remark: "the Node is found by `spec.providerID`, or by the label `spot-handler/instance-id`"},
	{variable: "AWS_REGION", value: "awsRegion", here: "`AWS_REGION`", env: "AWS_REGION"},
	{variable: "AWS_ENDPOINT", value: "awsEndpoint", here: "`AWS_ENDPOINT_URL_SQS`", env: "AWS_ENDPOINT_URL_SQS", remark: "the SDK's variable; it is for one service"},
	{variable: "AWS_ACCESS_KEY_ID", value: "awsAccessKeyID", here: "`AWS_ACCESS_KEY_ID`", env: "AWS_ACCESS_KEY_ID"},
	{variable: "AWS_SECRET_ACCESS_KEY", value: "awsSecretAccessKey", here: "`AWS_SECRET_ACCESS_KEY`", env: "AWS_SECRET_ACCESS_KEY"},

	// The metadata service.
	{variable: "INSTANCE_METADATA_URL", value: "instanceMetadataURL", fallback: "http://169.254.169.254",
		here: "`AWS_EC2_METADATA_SERVICE_ENDPOINT`", env: "AWS_EC2_METADATA_SERVICE_ENDPOINT", remark: "the SDK's variable"},
	{variable: "METADATA_TRIES", value: "metadataTries", fallback: "3", remark: "the metadata service is tried again for as long as it takes, with backoff"},
	{variable: "UPTIME_FROM_FILE", value: "procUptimeFile", fallback: "/proc/uptime", remark: "for its tests"},

	// The drain.
	{variable: "DRY_RUN", value: "dryRun", fallback: "false", here: "`--dry-run`", flag: "dry-run"},
	{variable: "CORDON_ONLY", value: "cordonOnly", fallback: "false", here: "`--cordon-only`", flag: "cordon-only"},
	{variable: "TAINT_NODE", value: "taintNode", fallback: "false", here: "always", convert: mindIf("true"),
		remark: "the taint is `spot-handler/interrupted=<kind>:NoSchedule`, not `aws-node-termination-handler/...`; pods that tolerate it stay on the node"},
	{variable: "TAINT_EFFECT", fallback: "NoSchedule", remark: "`NoSchedule` is the only one: any other would evict pods at the wrong time, or not keep new ones away"},
	{variable: "ENABLE_OUT_OF_SERVICE_TAINT", value: "enableOutOfServiceTaint", fallback: "false", here: "on `terminated`", remark: "set only when EC2 has said that the instance is terminated: on a node that still runs this taint ends all pods at once and detaches their volumes"},
	{variable: "EXCLUDE_FROM_LOAD_BALANCERS", value: "excludeFromLoadBalancers", fallback: "false", here: "always, if the instance is sure to end", harmless: "*"},
	{variable: "DELETE_LOCAL_DATA", value: "deleteLocalData", fallback: "true", here: "always", remark: "pods with `emptyDir` are moved too: their data ends with the instance anyway"},
	{variable: "IGNORE_DAEMON_SETS", value: "ignoreDaemonSets", fallback: "true", here: "always", remark: "pods of DaemonSets stay"},
	{variable: "POD_TERMINATION_GRACE_PERIOD", value: "podTerminationGracePeriod", fallback: "-1", remark: "each pod has its own grace period, or as much of it as the deadline allows"},
	{variable: "GRACE_PERIOD", fallback: "-1", remark: "each pod has its own grace period, or as much of it as the deadline allows"},
	{variable: "NODE_TERMINATION_GRACE_PERIOD", value: "nodeTerminationGracePeriod", fallback: "120",
		remark: "the deadline is EC2's own; `--margin` is kept free before it"},
	{variable: "USE_APISERVER_CACHE", fallback: "false", here: "always", harmless: "*", remark: "pods are listed from the API server's cache, and watched"},

	// Webhooks.
	{variable: "WEBHOOK_URL", value: "webhookURL", here: "`--webhook-url-file`", convert: webhookFile("webhook-url-file"),
		remark: "notified of the outcome, too"},
	{variable: "WEBHOOK_PROXY", value: "webhookProxy", here: "`--webhook-proxy`", convert: webhookProxy, remark: "`tcp://` is written `http://`"},
	{variable: "WEBHOOK_HEADERS", value: "webhookHeaders", fallback: `{"Content-type":"application/json"}`, here: "`--webhook-headers-file`", convert: webhookHeaders,
		remark: "its JSON can be the content of the file"},
	{variable: "WEBHOOK_TEMPLATE", value: "webhookTemplate", here: "`--webhook-template-file`", convert: webhookTemplate,
		remark: "fields of the same name mean the same, with other words in `.Kind`; a field that does not exist here, or a text that is not escaped by `toJson`, is an error at the start"},
	{variable: "WEBHOOK_TEMPLATE_FILE", here: "`--webhook-template-file`", flag: "webhook-template-file", remark: "as above"},

	// Operation.
	{variable: "JSON_LOGGING", value: "jsonLogging", fallback: "false", here: "always, but in a terminal", harmless: "*"},
	{variable: "LOG_LEVEL", value: "logLevel", fallback: "info", here: "`--log-level`", convert: logLevel},
	{variable: "LOG_FORMAT_VERSION", value: "logFormatVersion", fallback: "1", remark: "the log has other messages and fields"},
	{variable: "ENABLE_PROMETHEUS_SERVER", value: "enablePrometheusServer", fallback: "false", here: "always", harmless: "*", remark: "other metrics: see [Metrics](reference.md#metrics)"},
	{variable: "PROMETHEUS_SERVER_PORT", value: "prometheusServerPort", fallback: "9092", here: "`--http-addr`", convert: httpPort, always: true,
		remark: "one port for `/metrics`, `/healthz` and `/readyz`"},
	{variable: "ENABLE_PROBES_SERVER", value: "enableProbesServer", fallback: "false", here: "always", harmless: "*"},
	{variable: "PROBES_SERVER_PORT", fallback: "8080", here: "`--http-addr`", convert: httpPort, remark: "if metrics have no port of their own"},
	{variable: "PROBES_SERVER_ENDPOINT", fallback: "/healthz", remark: "it is `/healthz`, and `/readyz` for readiness"},
	{variable: "EMIT_KUBERNETES_EVENTS", value: "emitKubernetesEvents", fallback: "false", here: "always", harmless: "*", remark: "with other reasons"},
	{variable: "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS", value: "kubernetesEventsExtraAnnotations", remark: "Events carry their own annotations, and no others"},
	{variable: "NODE_NAME", here: "`NODE_NAME`", env: "NODE_NAME", remark: "imds mode"},
	{variable: "POD_NAME", here: "`POD_NAME`", env: "POD_NAME", remark: "queue mode"},
	{variable: "NAMESPACE", here: "`POD_NAMESPACE`", env: "POD_NAMESPACE", remark: "queue mode"},
	{variable: "KUBERNETES_SERVICE_HOST", here: "`KUBERNETES_SERVICE_HOST`", env: "KUBERNETES_SERVICE_HOST", remark: "the kubelet sets it"},
	{variable: "KUBERNETES_SERVICE_PORT", here: "`KUBERNETES_SERVICE_PORT`", env: "KUBERNETES_SERVICE_PORT", remark: "the kubelet sets it"},
}

// chartSettings are those that only its chart has.
var chartSettings = []setting{
	{value: "image.repository", here: "`image.repository`", harmless: "*", remark: "the registry that you push spot-handler's image to"},
	{value: "image.tag", here: "`image.tag`", harmless: "*", remark: "of spot-handler's image"},
	{value: "image.pullPolicy", here: "`image.pullPolicy`", path: "image.pullPolicy", fallback: "IfNotPresent"},
	{value: "image.pullSecrets", here: "`image.pullSecrets`", path: "image.pullSecrets"},
	{value: "nameOverride", here: "`nameOverride`", path: "nameOverride"},
	{value: "fullnameOverride", here: "`fullnameOverride`", harmless: "*", remark: "not taken over: while both are installed their names must differ"},
	{value: "serviceAccount.create", here: "`COMPONENT.serviceAccount.create`", path: "COMPONENT.serviceAccount.create", fallback: "true"},
	{value: "serviceAccount.name", here: "`COMPONENT.serviceAccount.name`", path: "COMPONENT.serviceAccount.name"},
	{value: "serviceAccount.annotations", here: "`COMPONENT.serviceAccount.annotations`", path: "COMPONENT.serviceAccount.annotations", remark: "the role behind it needs other permissions: see deploy/aws.md"},
	{value: "rbac.create", fallback: "true", remark: "the roles are always made"},
	{value: "rbac.pspEnabled", fallback: "true", harmless: "*", remark: "Kubernetes no longer has PodSecurityPolicy"},
	{value: "customLabels", remark: "`COMPONENT.podLabels` are for pods; other objects take none"},
	{value: "podLabels", here: "`COMPONENT.podLabels`", path: "COMPONENT.podLabels"},
	{value: "podAnnotations", here: "`COMPONENT.podAnnotations`", path: "COMPONENT.podAnnotations"},
	{value: "podSecurityContext", fallback: "{fsGroup: 1000}", remark: "fixed: not root, no capabilities"},
	{value: "securityContext", fallback: "{readOnlyRootFilesystem: true, runAsNonRoot: true, allowPrivilegeEscalation: false, runAsUser: 1000, runAsGroup: 1000}",
		remark: "fixed: not root, no capabilities"},
	{value: "terminationGracePeriodSeconds", remark: "it ends within a few seconds"},
	{value: "resources", here: "`COMPONENT.resources`", remark: "not taken over: the needs differ, and the chart's defaults come from measurements"},
	{value: "nodeSelector", here: "`controller.nodeSelector`", convert: inMode(modeQueue, "controller.nodeSelector"), remark: "imds runs on nodes with `spotLabels`"},
	{value: "affinity", remark: "built in: imds on spot nodes, drain and queue on all others, on different hosts"},
	{value: "tolerations", here: "`controller.tolerations`", convert: inMode(modeQueue, "controller.tolerations"), remark: "imds tolerates all taints"},
	{value: "topologySpreadConstraints", remark: "built in: different hosts, and zones where possible"},
	{value: "extraEnv", here: "`COMPONENT.env`", path: "COMPONENT.env"},
	{value: "probes", fallback: "{httpGet: {path: /healthz, port: 8080}, initialDelaySeconds: 5, periodSeconds: 5}", remark: "built in"},
	{value: "replicas", fallback: "1", here: "`controller.replicas`", convert: replicas, remark: "2 by default: both take notices, one drains, and webhooks are not doubled"},
	{value: "strategy", remark: "built in"},
	{value: "podDisruptionBudget", remark: "always made"},
	{value: "serviceMonitor.create", fallback: "false", here: "`serviceMonitor.enabled`", path: "serviceMonitor.enabled"},
	{value: "serviceMonitor.namespace", remark: "the release's own"},
	{value: "serviceMonitor.labels", here: "`serviceMonitor.labels`", path: "serviceMonitor.labels"},
	{value: "serviceMonitor.interval", fallback: "30s", here: "`serviceMonitor.interval`", path: "serviceMonitor.interval"},
	{value: "serviceMonitor.sampleLimit", fallback: "5000", remark: "no limit is set"},
	{value: "podMonitor.create", fallback: "false", here: "`podMonitor.enabled`", path: "podMonitor.enabled"},
	{value: "podMonitor.namespace", remark: "the release's own"},
	{value: "podMonitor.labels", here: "`podMonitor.labels`", path: "podMonitor.labels"},
	{value: "podMonitor.interval", fallback: "30s", here: "`podMonitor.interval`", path: "podMonitor.interval"},
	{value: "podMonitor.sampleLimit", fallback: "5000", remark: "no limit is set"},
	{value: "priorityClassName", fallback: "system-cluster-critical", here: "`controller.priorityClassName`", convert: inMode(modeQueue, "controller.priorityClassName")},
	{value: "daemonsetPriorityClassName", fallback: "system-node-critical", here: "`imds.priorityClassName`", convert: inMode(modeIMDS, "imds.priorityClassName")},
	{value: "webhookURLSecretName", here: "`webhook.secretName`", convert: webhookSecret, remark: "the same Secret, with `webhook.urlKey` `webhookurl`"},
	{value: "webhookTemplateConfigMapName", here: "`webhook.templateKey`", convert: webhookConfigMap, remark: "a key of the webhook's Secret"},
	{value: "webhookTemplateConfigMapKey", here: "`webhook.templateKey`", harmless: "*", remark: "as above"},
	{value: "targetNodeOs", fallback: "linux", remark: "Linux only"},
	{value: "linuxPodLabels", here: "`imds.podLabels`", convert: inMode(modeIMDS, "imds.podLabels")},
	{value: "linuxPodAnnotations", here: "`imds.podAnnotations`", convert: inMode(modeIMDS, "imds.podAnnotations")},
	{value: "windowsPodLabels", remark: "Linux only"},
	{value: "windowsPodAnnotations", remark: "Linux only"},
	{value: "updateStrategy", fallback: "{type: RollingUpdate, rollingUpdate: {maxUnavailable: 25%}}", here: "`imds.maxUnavailable`", convert: updateStrategy},
	{value: "useHostNetwork", fallback: "true", here: "`imds.hostNetwork`", path: "imds.hostNetwork"},
	{value: "dnsPolicy", remark: "imds looks up no names"},
	{value: "dnsConfig", remark: "imds looks up no names"},
	{value: "linuxDnsPolicy", fallback: "ClusterFirstWithHostNet", remark: "imds looks up no names"},
	{value: "windowsDnsPolicy", fallback: "ClusterFirst", remark: "Linux only"},
	{value: "daemonsetNodeSelector", remark: "`spotLabels` say which nodes imds runs on"},
	{value: "linuxNodeSelector", remark: "`spotLabels` say which nodes imds runs on"},
	{value: "windowsNodeSelector", remark: "Linux only"},
	{value: "daemonsetAffinity", remark: "`spotLabels` say which nodes imds runs on",
		fallback: "{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}]}]}}}"},
	{value: "linuxAffinity", remark: "`spotLabels` say which nodes imds runs on"},
	{value: "windowsAffinity", remark: "Linux only"},
	{value: "daemonsetTolerations", fallback: "[{operator: Exists}]", remark: "imds tolerates all taints"},
	{value: "linuxTolerations", remark: "imds tolerates all taints"},
	{value: "windowsTolerations", remark: "Linux only"},
}

// Row is a setting as the documentation lists it.
type Row struct {
	Variable string // the environment variable of aws-node-termination-handler, or empty
	Value    string // the value of its chart, or empty
	Here     string // what does the same here; empty is nothing
	Remark   string // why there is nothing, or how it differs
}

// Rows are all settings: those with a variable, and those that only its chart has.
func Rows() (variables, chart []Row) {
	rows := func(list []setting) (rows []Row) {
		for _, s := range list {
			rows = append(rows, Row{s.variable, s.value, s.here, s.remark})
		}
		return rows
	}
	return rows(settings), rows(chartSettings)
}

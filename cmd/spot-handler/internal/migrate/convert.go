package migrate

import (
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"spot-handler/handler/interruption"
	"spot-handler/handler/webhook"
)

// rebalance joins its two switches, of which the default is not ours. In queue mode it
// drains whatever they say.
func rebalance(m *migration, s setting, _ string) {
	policy := interruption.RebalanceIgnore
	switch {
	case m.mode == modeQueue, m.isOn("ENABLE_REBALANCE_DRAINING"):
		policy = interruption.RebalanceReplace
	case m.isOn("ENABLE_REBALANCE_MONITORING"):
		policy = interruption.RebalanceCordon
	}
	if m.isOn("CORDON_ONLY") && policy == interruption.RebalanceReplace {
		policy = interruption.RebalanceCordon
	}
	m.flag("rebalance", string(policy))
	if policy == interruption.RebalanceReplace {
		m.mind(s.nameIn(m.given), s.remark)
	}
}

// watch joins the switches of imds mode if one is off: here all are on. Rebalance recommendations
// are left to --rebalance.
func watch(m *migration, _ setting, _ string) {
	kinds := []string{"spot", "lifecycle", "rebalance", "scheduled-events"}
	on := slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool {
		of := map[string]string{
			"spot": "ENABLE_SPOT_INTERRUPTION_DRAINING", "lifecycle": "ENABLE_ASG_LIFECYCLE_DRAINING", "scheduled-events": "ENABLE_SCHEDULED_EVENT_DRAINING",
		}[kind]
		return of != "" && !m.isOn(of)
	})
	if m.mode == modeIMDS && len(on) < len(kinds) {
		m.flag("watch", strings.Join(on, ","))
	}
}

// seconds takes over a number of them as a duration, in queue mode. -1 is none.
func seconds(flag string) func(*migration, setting, string) {
	return func(m *migration, s setting, value string) {
		number, err := strconv.Atoi(value)
		switch {
		case err != nil:
			m.lose(s.nameIn(m.given)+"="+value, "is no number of seconds")
		case number > 0 && m.mode == modeQueue:
			m.flag(flag, value+"s")
		}
	}
}

// heartbeatInterval switches heartbeats on where nothing says for how long: there it is as long as
// AWS allows.
func heartbeatInterval(m *migration, s setting, value string) {
	if interval, _ := strconv.Atoi(value); interval <= 0 {
		return
	}
	if until, _ := strconv.Atoi(m.lookup("HEARTBEAT_UNTIL")); until <= 0 {
		seconds("heartbeat-until")(m, s, "172800")
	}
}

// managedTag takes over its tag where somebody has asked for it. Its default is to ask for
// one, which here would only cost calls to EC2: messages about others are none of a Node.
func managedTag(m *migration, s setting, _ string) {
	check, checkGiven := m.renamed("CHECK_TAG_BEFORE_DRAINING", "CHECK_ASG_TAG_BEFORE_DRAINING")
	tag, tagGiven := m.renamed("MANAGED_TAG", "MANAGED_ASG_TAG")
	if m.mode != modeQueue || !isTrue(check) {
		return
	}
	if checkGiven || tagGiven {
		m.flag("managed-tag", tag)
		return
	}
	m.mind(s.nameIn(m.given)+"=true (its default)", s.remark+". To look at it still: `--managed-tag="+tag+"`")
}

// mindIf tells the remark of a setting that has the value.
func mindIf(value string) func(*migration, setting, string) {
	return func(m *migration, s setting, got string) {
		if got == value {
			m.mind(s.nameIn(m.given), s.remark)
		}
	}
}

func webhookProxy(m *migration, s setting, value string) {
	if rest, ok := strings.CutPrefix(value, "tcp://"); ok {
		value = "http://" + rest
	}
	if _, err := webhook.ParseProxy(value); err != nil {
		m.lose(s.nameIn(m.given), err.Error())
		return
	}
	m.flag("webhook-proxy", value)
}

// webhookDir is where our chart mounts the webhook's Secret.
const webhookDir = "/etc/spot-handler/webhook"

// webhookFile has a value go into the Secret that the flag names a file of.
func webhookFile(flag string) func(*migration, setting, string) {
	return func(m *migration, s setting, _ string) {
		key := strings.TrimSuffix(strings.TrimPrefix(flag, "webhook-"), "-file")
		m.flag(flag, path.Join(webhookDir, key))
		m.mind(s.nameIn(m.given), "put the value, as it is, into the key "+key+" of a Secret, which is mounted at "+webhookDir)
	}
}

func webhookHeaders(m *migration, s setting, value string) {
	var headers map[string]string
	if err := json.Unmarshal([]byte(value), &headers); err == nil && len(headers) == 1 &&
		strings.EqualFold(m.headers().Get("Content-Type"), "application/json") {
		return // the default, written in another way
	}
	webhookFile("webhook-headers-file")(m, s, value)
}

// headers are those that its webhooks have, as far as they can be read.
func (m *migration) headers() http.Header {
	headers, err := webhook.ParseHeaders(m.lookup("WEBHOOK_HEADERS"))
	if err != nil {
		return http.Header{}
	}
	return headers
}

func webhookTemplate(m *migration, s setting, value string) {
	name := s.nameIn(m.given)
	if _, err := webhook.ParseTemplate(value, m.headers()); err != nil {
		m.lose(name, "cannot be used as it is: "+err.Error())
		return
	}
	webhookFile("webhook-template-file")(m, s, value)
	m.mind(name, s.remark)
}

// logLevel takes over the level, where there is one of that name.
func logLevel(m *migration, s setting, value string) {
	levels := []string{"debug", "info", "warn", "error"}
	switch level := strings.ToLower(value); {
	case !slices.Contains(levels, level):
		m.lose(s.nameIn(m.given)+"="+value, "want one of "+strings.Join(levels, ", "))
	case level != s.fallback:
		m.flag("log-level", level)
	}
}

// httpPort takes over the port of metrics where it serves them, else that of the probes.
func httpPort(m *migration, s setting, value string) {
	if s.variable == "PROBES_SERVER_PORT" && m.isOn("ENABLE_PROMETHEUS_SERVER") {
		return
	}
	if s.variable == "PROMETHEUS_SERVER_PORT" && !m.isOn("ENABLE_PROMETHEUS_SERVER") {
		return
	}
	m.flag("http-addr", ":"+value)
}

// inMode takes a value of the chart over where it is about the mode.
func inMode(mode, path string) func(*migration, setting, string) {
	return func(m *migration, s setting, _ string) {
		if m.mode == mode {
			m.values[path] = m.given.raw(s)
		} else if s.remark != "" {
			m.lose(s.value, s.remark)
		}
	}
}

func replicas(m *migration, s setting, _ string) {
	if m.mode == modeQueue {
		m.values["controller.replicas"] = m.given.raw(s)
		m.mind(s.value, s.remark)
	}
}

func updateStrategy(m *migration, s setting, _ string) {
	strategy, _ := m.given.raw(s).(map[string]any)
	rolling, _ := strategy["rollingUpdate"].(map[string]any)
	if most, ok := rolling["maxUnavailable"].(string); ok && strings.HasSuffix(most, "%") && m.mode == modeIMDS {
		m.values["imds.maxUnavailable"] = most
	} else {
		m.lose(s.value, "only rollingUpdate.maxUnavailable, in percent, and only in imds mode")
	}
}

// webhookSecret takes over the Secret's name; its key is fixed.
func webhookSecret(m *migration, _ setting, name string) {
	m.values["webhook.secretName"], m.values["webhook.urlKey"] = name, "webhookurl"
}

func webhookConfigMap(m *migration, s setting, name string) {
	m.values["webhook.templateKey"] = "template"
	m.mind(s.value, "put the template of the ConfigMap "+name+" into the key template of the webhook's Secret")
}

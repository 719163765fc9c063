package migrate

import (
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"spot-handler/handler/interruption"
	"spot-handler/handler/webhook"
)

// converters take over the settings that name one, with their value or default.
var converters = map[string]func(m *migration, s setting, value string){
	"rebalance": rebalance, "watch": watch, "managedTag": managedTag, "webhookHeaders": webhookHeaders,

	// A number of seconds; -1 is none.
	"seconds": func(m *migration, s setting, value string) {
		number, err := strconv.Atoi(value)
		switch {
		case err != nil:
			m.lose(m.name(s)+"="+value, "is no number of seconds")
		case number > 0 && m.mode == modeQueue:
			m.flag(s.Flag, value+"s")
		}
	},
	// Heartbeats are on where nothing says for how long: there it is as long as AWS allows.
	"heartbeatInterval": func(m *migration, s setting, value string) {
		interval, _ := strconv.Atoi(value)
		if until, _ := strconv.Atoi(m.lookup("HEARTBEAT_UNTIL")); interval > 0 && until <= 0 && m.mode == modeQueue {
			m.flag("heartbeat-until", "172800s")
		}
	},
	"different": func(m *migration, s setting, value string) {
		if value == "true" {
			m.mind(m.name(s), s.Remark)
		}
	},
	"logLevel": func(m *migration, s setting, value string) {
		levels := []string{"debug", "info", "warn", "error"}
		switch level := strings.ToLower(value); {
		case !slices.Contains(levels, level):
			m.lose(m.name(s)+"="+value, "want one of "+strings.Join(levels, ", "))
		case level != s.Default:
			m.flag("log-level", level)
		}
	},
	// The port of metrics where it serves them, else that of the probes.
	"httpPort": func(m *migration, s setting, value string) {
		if m.isOn("ENABLE_PROMETHEUS_SERVER") == (s.Variable == "PROMETHEUS_SERVER_PORT") {
			m.flag("http-addr", ":"+value)
		}
	},
	"updateStrategy": func(m *migration, s setting, _ string) {
		strategy, _ := m.raw(s).(map[string]any)
		rolling, _ := strategy["rollingUpdate"].(map[string]any)
		if most, ok := rolling["maxUnavailable"].(string); ok && strings.HasSuffix(most, "%") && m.mode == modeIMDS {
			m.values["imds.maxUnavailable"] = most
		} else {
			m.lose(s.Value, "only rollingUpdate.maxUnavailable, in percent, and only in imds mode")
		}
	},

	"webhookFile": webhookFile,
	"webhookTemplate": func(m *migration, s setting, value string) {
		if _, err := webhook.ParseTemplate(value, m.headers()); err != nil {
			m.lose(m.name(s), "cannot be used as it is: "+err.Error())
			return
		}
		webhookFile(m, s, value)
		m.mind(m.name(s), s.Remark)
	},
	"webhookProxy": func(m *migration, s setting, value string) {
		if rest, ok := strings.CutPrefix(value, "tcp://"); ok {
			value = "http://" + rest
		}
		if _, err := webhook.ParseProxy(value); err != nil {
			m.lose(m.name(s), err.Error())
			return
		}
		m.flag(s.Flag, value)
	},
	// The Secret's name; its key is fixed.
	"webhookSecret": func(m *migration, _ setting, name string) {
		m.values["webhook.secretName"], m.values["webhook.urlKey"] = name, "webhookurl"
	},
	"webhookConfigMap": func(m *migration, s setting, name string) {
		m.values["webhook.templateKey"] = "template"
		m.mind(s.Value, "put the template of the ConfigMap "+name+" into the key template of the webhook's Secret")
	},
}

// rebalance joins its two switches, of which the default is not ours. In queue mode it
// drains whatever they say.
func rebalance(m *migration, s setting, _ string) {
	policy := interruption.RebalanceIgnore
	switch drains := m.mode == modeQueue || m.isOn("ENABLE_REBALANCE_DRAINING"); {
	case drains && !m.isOn("CORDON_ONLY"):
		policy = interruption.RebalanceReplace
		m.mind(m.name(s), s.Remark)
	case drains || m.isOn("ENABLE_REBALANCE_MONITORING"):
		policy = interruption.RebalanceCordon
	}
	m.flag("rebalance", string(policy))
}

// watch joins the switches of imds mode if one is off: here all are on. Rebalance recommendations
// are left to --rebalance.
func watch(m *migration, _ setting, _ string) {
	var on []string
	for _, kind := range []struct{ name, variable string }{
		{"spot", "ENABLE_SPOT_INTERRUPTION_DRAINING"}, {"lifecycle", "ENABLE_ASG_LIFECYCLE_DRAINING"}, {"rebalance", ""}, {"scheduled-events", "ENABLE_SCHEDULED_EVENT_DRAINING"},
	} {
		if kind.variable == "" || m.isOn(kind.variable) {
			on = append(on, kind.name)
		}
	}
	if m.mode == modeIMDS && len(on) < 4 {
		m.flag("watch", strings.Join(on, ","))
	}
}

// managedTag takes over its tag where somebody has asked for it. Its default is to ask for
// one, which here would only cost calls to EC2: messages about others are none of a Node.
func managedTag(m *migration, s setting, _ string) {
	check, checkGiven := m.renamed("CHECK_TAG_BEFORE_DRAINING", "CHECK_ASG_TAG_BEFORE_DRAINING")
	tag, tagGiven := m.renamed("MANAGED_TAG", "MANAGED_ASG_TAG")
	switch {
	case m.mode != modeQueue || !isTrue(check):
	case checkGiven || tagGiven:
		m.flag("managed-tag", tag)
	default:
		m.mind(m.name(s)+"=true (its default)", s.Remark+". To look at it still: `--managed-tag="+tag+"`")
	}
}

// renamed is the value of a setting that has an older name, too, and whether it was given by
// either. The older counts where the other is not given; its chart always gives both.
func (m *migration) renamed(name, older string) (value string, isGiven bool) {
	if value, ok := m.given.values[older].(string); ok && m.given.values[name] == nil {
		return value, true
	}
	i := slices.IndexFunc(m.table, func(s setting) bool { return s.Variable == name })
	return m.lookup(name), m.get(m.table[i]) != ""
}

// webhookDir is where our chart mounts the webhook's Secret.
const webhookDir = "/etc/spot-handler/webhook"

// webhookFile has a value go into the Secret that the flag names a file of.
func webhookFile(m *migration, s setting, _ string) {
	key := strings.TrimSuffix(strings.TrimPrefix(s.Flag, "webhook-"), "-file")
	m.flag(s.Flag, path.Join(webhookDir, key))
	m.mind(m.name(s), "put the value, as it is, into the key "+key+" of a Secret, which is mounted at "+webhookDir)
}

func webhookHeaders(m *migration, s setting, value string) {
	if headers := m.headers(); len(headers) == 1 && strings.EqualFold(headers.Get("Content-Type"), "application/json") {
		return // the default, written in another way
	}
	webhookFile(m, s, value)
}

// headers are those that its webhooks have, as far as they can be read.
func (m *migration) headers() http.Header {
	headers, err := webhook.ParseHeaders(m.lookup("WEBHOOK_HEADERS"))
	if err != nil {
		return http.Header{}
	}
	return headers
}

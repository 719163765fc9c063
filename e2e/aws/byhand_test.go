package aws

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A guide is deploy/aws.md: the commands of its section for those who use no template.
type guide struct {
	commands string
	files    map[string]string // what the commands write, variables not yet filled in
}

func readGuide(t *testing.T) guide {
	t.Helper()
	g := guide{files: map[string]string{}}
	for i, block := range strings.Split(section(t, "deploy/aws.md", "## By hand"), "```") {
		if commands, isShell := strings.CutPrefix(block, "sh\n"); isShell && i%2 == 1 {
			g.commands += commands
		}
	}
	for _, f := range regexp.MustCompile(`(?s)cat > (\S+) <<JSON\n(.*?)\nJSON\n`).FindAllStringSubmatch(g.commands, -1) {
		g.files[f[1]] = f[2]
	}
	g.commands = strings.ReplaceAll(g.commands, "\\\n", "")
	return g
}

// byHand is what the guide's commands ask for.
func byHand(t *testing.T, s settings) deployment {
	t.Helper()
	if s != (settings{}) {
		t.Fatalf("the guide has no choices: %+v", s)
	}
	g := readGuide(t)
	vars := g.variables(t)
	queueARN, deadLettersARN := vars["QUEUE_ARN"], vars["DEAD_LETTERS_ARN"]
	d := deployment{
		queue: g.queue(t, "queue.json", queueARN, vars), deadLetters: g.queue(t, "dead-letters.json", deadLettersARN, vars),
		rules: map[string]rule{}, outputs: map[string]string{},
		permissions: mustStatements(t, expand(g.files["permissions.json"], vars)),
		trust:       mustStatements(t, expand(g.files["trust.json"], vars)),
	}
	for _, q := range []*sqsQueue{&d.queue, &d.deadLetters} {
		vars["ARN"] = q.arn
		q.policy = mustStatements(t, expand(g.files["queue-policy.json"], vars))
		if q.arn == deadLettersARN && strings.Contains(g.commands, `jq 'del(.Statement[2])'`) {
			q.policy = q.policy[:2]
		}
	}

	var targets []struct {
		Arn              string
		RetryPolicy      struct{ MaximumEventAgeInSeconds int }
		DeadLetterConfig struct{ Arn string }
	}
	decode(t, expand(g.files["targets.json"], vars), &targets)
	loop := regexp.MustCompile(`for RULE in ([a-z- ]+); do`).FindStringSubmatch(g.commands)
	if loop == nil || len(targets) != 1 {
		t.Fatalf("the rules get %d targets", len(targets))
	}
	for _, f := range regexp.MustCompile(`put-rule --name "(\S+)" +--event-pattern '([^']+)'`).FindAllStringSubmatch(g.commands, -1) {
		name := expand(f[1], vars)
		if !strings.Contains(" "+loop[1]+" ", " "+strings.TrimPrefix(name, vars["NAME"]+"-")+" ") {
			t.Errorf("rule %s gets no target", name)
		}
		d.rules[name] = rule{
			arn: arn("events", "rule/"+name), pattern: f[2], target: targets[0].Arn,
			deadLetter: targets[0].DeadLetterConfig.Arn, maxAge: targets[0].RetryPolicy.MaximumEventAgeInSeconds,
		}
	}
	flags := regexp.MustCompile(`create-pod-identity-association --cluster-name "(\S+)" +--namespace (\S+) --service-account (\S+) +--role-arn "(\S+)"`).FindStringSubmatch(g.commands)
	if flags == nil {
		t.Fatal("the guide associates no role")
	}
	d.association = map[string]string{"cluster": expand(flags[1], vars), "namespace": flags[2], "service account": flags[3], "role": expand(flags[4], vars)}
	return d
}

// variables works out the shell's variables that are set from one another; those that
// are asked of AWS are ours.
func (g guide) variables(t *testing.T) map[string]string {
	t.Helper()
	vars := map[string]string{"AWS_REGION": region, "ACCOUNT": account, "PARTITION": partition, "CLUSTER": cluster}
	for _, f := range regexp.MustCompile(`(?m)^([A-Z_]+)=([^\s(]+)( #.*)?$`).FindAllStringSubmatch(g.commands, -1) {
		if _, ours := vars[f[1]]; !ours {
			vars[f[1]] = expand(f[2], vars)
		}
	}
	return vars
}

// expand fills variables in, in a here-document or in double quotes.
func expand(text string, vars map[string]string) string {
	return os.Expand(strings.ReplaceAll(text, `\"`, "\x00"), func(name string) string {
		if v, ok := vars[name]; ok {
			return v
		}
		return "UNSET-" + name
	})
}

func (g guide) queue(t *testing.T, file, arn string, vars map[string]string) sqsQueue {
	t.Helper()
	var a map[string]string
	// A here-document keeps the backslash before a quotation mark.
	if err := json.Unmarshal([]byte(strings.ReplaceAll(expand(g.files[file], vars), "\x00", `\"`)), &a); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	name := arn[strings.LastIndex(arn, ":")+1:]
	q := sqsQueue{name: name, arn: arn, url: queueURL(name), managedSSE: a["SqsManagedSseEnabled"] == "true", kmsKey: a["KmsMasterKeyId"]}
	for attribute, to := range map[string]*int{
		"MessageRetentionPeriod": &q.retention, "VisibilityTimeout": &q.visibility, "ReceiveMessageWaitTimeSeconds": &q.wait,
	} {
		*to, _ = strconv.Atoi(a[attribute])
	}
	decode(t, a["RedrivePolicy"], &q.redrive)
	decode(t, a["RedriveAllowPolicy"], &q.redriveAllow)
	return q
}

// Everything that the guide names a choice is one of both templates, by the names and
// with the defaults that it says, and nothing is left out.
func TestGuideNamesEveryChoice(t *testing.T) {
	choices := section(t, "deploy/aws.md", "## What to choose")
	named := map[string]string{} // default by name
	for _, row := range regexp.MustCompile(`(?m)^\| (\S+) \| (\S+) \| (\S+) \| .+ \|$`).FindAllStringSubmatch(choices, -1)[1:] {
		for _, name := range row[1:3] {
			named[strings.Trim(name, "`")] = strings.Trim(row[3], "`")
		}
	}
	delete(named, "–")
	check := func(name, def string) {
		t.Helper()
		said, ok := named[name]
		if !ok {
			t.Errorf("deploy/aws.md does not name %s", name)
		}
		if said != def && (said != "–" && !strings.Contains(said, "<") || def != "") {
			t.Errorf("deploy/aws.md says that %s is %s without being set, the template says %q", name, said, def)
		}
		delete(named, name)
	}
	for name, p := range fields(child(readTemplate(t, parametersOf(settings{})).root, "Parameters")) {
		def := ""
		if n := child(p, "Default"); n != nil {
			def = n.Value
		}
		check(name, def)
	}
	for name, def := range moduleDefaults(t) {
		check(name, def)
	}
	for name := range named {
		t.Errorf("deploy/aws.md names %s, which no template has", name)
	}
}

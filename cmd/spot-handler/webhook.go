package main

import (
	"net/http"
	"os"

	"spot-handler/handler/webhook"
)

// webhookConfig is what the operator has asked for about webhooks.
type webhookConfig struct {
	urlFile      string
	headersFile  string
	templateFile string
	proxy        string
}

func (c *webhookConfig) define(g group) {
	g.StringVar(&c.urlFile, "webhook-url-file", "", "`file` with the URL that is notified of every notice and outcome, such as a mounted Secret's, with a POST that Slack's incoming webhooks take; read again for each webhook")
	g.StringVar(&c.headersFile, "webhook-headers-file", "", "`file` with headers for it, a line \"Name: value\" each or one JSON object; read again for each webhook (default: Content-Type: application/json)")
	g.StringVar(&c.templateFile, "webhook-template-file", "", "`file` with a Go template of the body, with sprig's functions, such as {\"text\": {{ .Text | toJson }}} (default: what Slack takes)")
	g.StringVar(&c.proxy, "webhook-proxy", "", "URL of a proxy for webhooks only (default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as for all else)")
}

// options reads all that is named, and calls bad for what cannot be used.
func (c webhookConfig) options(bad func(flag, format string, args ...any)) webhook.Options {
	var o webhook.Options
	var err error
	header := http.Header{}
	if c.urlFile != "" {
		file := webhook.Endpoint{URLFile: c.urlFile}
		if _, _, err = file.Read(); err != nil {
			bad("webhook-url-file", "%v", err)
		}
		o.Endpoint.URLFile = c.urlFile
	}
	if c.headersFile != "" {
		file := webhook.Endpoint{HeadersFile: c.headersFile}
		if _, header, err = file.Read(); err != nil {
			bad("webhook-headers-file", "%v", err)
		}
		o.Endpoint.HeadersFile = c.headersFile
	}
	if c.proxy != "" {
		if o.Proxy, err = webhook.ParseProxy(c.proxy); err != nil {
			bad("webhook-proxy", "%v", err)
		}
	}
	if c.templateFile != "" {
		text, err := os.ReadFile(c.templateFile)
		if err == nil {
			o.Template, err = webhook.ParseTemplate(string(text), header)
		}
		if err != nil {
			bad("webhook-template-file", "%v", err)
		}
	}
	if c.urlFile == "" {
		for _, given := range []struct{ flag, value string }{
			{"webhook-headers-file", c.headersFile}, {"webhook-template-file", c.templateFile}, {"webhook-proxy", c.proxy},
		} {
			if given.value != "" {
				bad(given.flag, "of no use without --webhook-url-file")
			}
		}
	}
	return o
}

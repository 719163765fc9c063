package main

import (
	"net/http"
	"os"

	"spot-handler/handler/webhook"
)

// webhookConfig is what the operator has asked for about webhooks.
type webhookConfig struct {
	url, urlFile           string
	headersFile            string
	template, templateFile string
	proxy                  string
}

func (c *webhookConfig) define(g group) {
	g.StringVar(&c.url, "webhook-url", "", "URL that is told of every notice and outcome, with a POST that Slack's incoming webhooks take; rather give such a secret as a variable or a file")
	g.StringVar(&c.urlFile, "webhook-url-file", "", "`file` with that URL instead, such as a mounted Secret's; read again for each webhook")
	g.StringVar(&c.headersFile, "webhook-headers-file", "", "`file` with headers for it, a line \"Name: value\" each or one JSON object; read again for each webhook (default: Content-Type: application/json)")
	g.StringVar(&c.template, "webhook-template", "", "Go template of the body, with sprig's functions, such as {\"text\": {{ .Text | toJson }}}; the README lists what it is given")
	g.StringVar(&c.templateFile, "webhook-template-file", "", "`file` with that template instead")
	g.StringVar(&c.proxy, "webhook-proxy", "", "URL of a proxy for webhooks only (default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as for all else)")
}

// options reads all that is named, and calls bad for what cannot be used.
func (c webhookConfig) options(bad func(flag, format string, args ...any)) webhook.Options {
	var o webhook.Options
	var err error
	header := http.Header{}
	if c.url != "" {
		if o.Endpoint.URL, err = webhook.ParseURL(c.url); err != nil {
			bad("webhook-url", "%v", err)
		}
	}
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
	template, from := c.template, "webhook-template"
	if c.templateFile != "" {
		from = "webhook-template-file"
		text, err := os.ReadFile(c.templateFile)
		if err != nil {
			bad(from, "%v", err)
		}
		template = string(text)
	}
	if template != "" {
		if o.Template, err = webhook.ParseTemplate(template, header); err != nil {
			bad(from, "%v", err)
		}
	}

	for _, pair := range []struct{ flag, value, other, file string }{
		{"webhook-url", c.url, "webhook-url-file", c.urlFile},
		{"webhook-template", c.template, "webhook-template-file", c.templateFile},
	} {
		if pair.value != "" && pair.file != "" {
			bad(pair.other, "give this or --%s, not both", pair.flag)
		}
	}
	if c.url == "" && c.urlFile == "" {
		for _, given := range []struct{ flag, value string }{
			{"webhook-headers-file", c.headersFile}, {"webhook-template", c.template},
			{"webhook-template-file", c.templateFile}, {"webhook-proxy", c.proxy},
		} {
			if given.value != "" {
				bad(given.flag, "of no use without --webhook-url or --webhook-url-file")
			}
		}
	}
	return o
}

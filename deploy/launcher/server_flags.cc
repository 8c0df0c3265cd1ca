#include "deploy/launcher/server_flags.h"

namespace flotilla {

void AddServerFlags(CLI::App* app, const std::string& url_help, ServerFlags* flags) {
  app->add_option("--url", flags->url, url_help)->capture_default_str();
  app->add_option("--api-key", flags->api_key, "If it wants one; better by FLOTILLA_API_KEY");
  app->add_option(
      kTlsToServer.ca_flag, flags->tls.ca_file,
      "PEM file of CAs, one of which an https:// server's certificate must be of. None: "
      "those that the system trusts");
  app->add_option(kTlsToServer.cert_flag, flags->tls.cert_file,
                  "PEM file of a certificate, if the server wants one of its clients");
  app->add_option(kTlsToServer.key_flag, flags->tls.key_file,
                  "PEM file of that certificate's private key");
}

}  // namespace flotilla

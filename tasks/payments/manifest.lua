-- An example: payments by Pix, Brazil's instant payment system.
return {
  tasks = {
    pix = {
      description = "book a payment that the bank has notified",
      owner = "tenant",
      lease = "5s", -- a dead worker's runs are taken up by others after this
      key = { "end_to_end_id" }, -- the bank repeats a notification until it is answered
      fingerprint = { "end_to_end_id", "amount_cents" },
      retention = "7d",
      args = {
        end_to_end_id = { type = "string", required = true, min = 1, description = "the bank's id of the payment" },
        amount_cents = { type = "integer", required = true, min = 1 },
        txid = { type = "string" },
        paid_at = { type = "string", description = "when the payer's bank sent it" },
      },
      queue = "payments",
      http = { method = "POST", path = "/payments", key_form = "uuid" },
    },
  },
}

-- An example: payments by Pix, Brazil's instant payment system.
return {
  tasks = {
    pix = {
      description = "book a payment that the bank has notified",
      owner = "tenant",
      key = { "end_to_end_id" }, -- the bank repeats a notification until it is answered
      fingerprint = { "end_to_end_id", "amount_cents" },
      retention = "7d",
      queue = "payments",
    },
  },
}

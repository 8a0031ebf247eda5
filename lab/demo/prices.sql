-- Rows in the character of a land registry's price-paid list: GUIDs, prices people agree on, dates, postcodes that belong
-- to streets, streets that belong to towns. Deterministic: every value is a hash of the row's number.
-- psql variables: rows.

CREATE TABLE town (id int PRIMARY KEY, name text, district text, county text, area text);
INSERT INTO town
SELECT i,
       upper(s.prefix[1 + pick(i, 1, 40)] || s.suffix[1 + pick(i, 2, 16)]),
       upper(s.prefix[1 + pick(i % 90, 3, 40)] || s.suffix[1 + pick(i % 90, 4, 16)]),
       upper(s.prefix[1 + pick(i % 40, 5, 40)] || 'SHIRE'),
       chr(65 + pick(i, 6, 26)) || chr(65 + pick(i, 7, 26))
FROM generate_series(0, 699) i,
     (SELECT ARRAY['Ash','Beck','Birch','Black','Brad','Brough','Carl','Chester','Clay','Cold','Dart','Dun','East','Elm',
                   'Fair','Glen','Hal','Hart','Hazel','Holm','Kirk','Lang','Led','Long','Mal','Market ','Mar','Nor','Oak',
                   'Old','Pen','Red','Ship','Stan','Stoke ','Thorn','Up','Wake','West','Win'] AS prefix,
             ARRAY['bridge','bury','by','combe','den','field','ford','ham','hurst','leigh','ley','mouth','ton','wick',
                   'worth','wood'] AS suffix) s;

CREATE TABLE street (id int PRIMARY KEY, town int, name text, locality text, outward text, sector text);
INSERT INTO street
SELECT i, t.id,
       upper(s.first[1 + pick(i, 10, 48)] || ' ' || s.kind[1 + pick(i, 11, 12)]),
       CASE WHEN pick(i, 12, 3) = 0 THEN upper(s.first[1 + pick(i, 13, 48)] || ' End') ELSE '' END,
       t.area || (1 + pick(i, 14, 40)),
       pick(i, 15, 10) || chr(65 + pick(i, 16, 20))
FROM generate_series(0, 39999) i
JOIN town t ON t.id = spread(i, 17, 700),
     (SELECT ARRAY['Abbey','Albert','Alma','Bank','Beech','Bell','Bridge','Brook','Castle','Cavendish','Cedar','Chapel','Church',
                   'Clarence','Cross','Derby','Duke','Fern','Garden','George','Grange','Green','Grove','Hawthorn','High',
                   'Hill','Holly','King','Lime','Manor','Maple','Meadow','Mill','Moor','New','North','Orchard','Park','Pear Tree',
                   'Queen','Richmond','School','Spring','Station','Vicarage','Victoria','Water','York'] AS first,
             ARRAY['Avenue','Close','Court','Crescent','Drive','Gardens','Lane','Place','Road','Street','Terrace','Way'] AS kind) s;
ANALYZE town, street;

CREATE TABLE price_paid (
    transaction_id uuid NOT NULL, price int NOT NULL, date_of_transfer date NOT NULL, postcode text, property_type "char",
    new_build boolean, tenure "char", paon text, saon text, street text, locality text, town text, district text, county text,
    category "char", status "char");
INSERT INTO price_paid
SELECT md5('transaction ' || i)::uuid,
       CASE pick(i, 20, 4) WHEN 0 THEN p - p % 1000 + 995 WHEN 1 THEN p - p % 5000 ELSE p - p % 500 END,
       date '1995-01-02' + (i * 10500 / :rows)::int + pick(i, 21, 60),
       s.outward || ' ' || s.sector || chr(65 + pick(i, 22, 4)),
       (ARRAY['D','S','T','F','O'])[1 + spread(i, 23, 5)]::"char",
       pick(i, 24, 10) = 0,
       (ARRAY['F','L'])[1 + pick(i, 25, 4) / 3]::"char",
       (1 + spread(i, 26, 220))::text,
       CASE WHEN pick(i, 27, 8) = 0 THEN 'FLAT ' || (1 + pick(i, 28, 30)) ELSE '' END,
       s.name, s.locality, t.name, t.district, t.county,
       CASE WHEN pick(i, 29, 20) = 0 THEN 'B' ELSE 'A' END::"char", 'A'::"char"
FROM (SELECT i, (exp(10.6 + 1.2 * i / :rows + (pick(i, 30, 1000) + pick(i, 31, 1000) + pick(i, 32, 1000)) / 1500.0))::int AS p
      FROM generate_series(1::bigint, :rows) i) r
JOIN street s ON s.id = spread(i, 33, 40000)
JOIN town t ON t.id = s.town;
ALTER TABLE price_paid ADD PRIMARY KEY (transaction_id);
CREATE INDEX price_paid_postcode ON price_paid (postcode);
CREATE INDEX price_paid_date ON price_paid (date_of_transfer);
